-- Pop: find due cursors, lease them, say which runs they cover. Bodies are fetched by the caller, who may have them.
--
-- Finding work is one index range, (group_id, due_at): null = drained, the past = ready, a lease's deadline while
-- leased, a retry time while backing off. So an expired lease needs no background job: its due_at has passed and the
-- next pop finds it. A partition that was served gets a later due_at and goes to the tail: that is the fairness.
--
-- Guarantees: one live lease per partition and group; earliest due first; at most _batch messages in all.
-- Locks: cursor rows, with SKIP LOCKED: a pop waits for nobody. Where a cursor turns out to be drained the
-- partition row must be locked before that is written down (else the wake-up of a push in flight is lost); against
-- the lock order, so it is only tried. If a push holds it, something is coming: the cursor is left due a little later.
-- Indexes: cursor_due, cursor_pkey, run_pkey.

-- One request per array position; _partition_ids[i] null is any partition, _lease_ms[i] null the queue's lease time.
create function lockstep.pop(
    _group_ids int[], _partition_ids bigint[], _partition_limits int[], _batches int[], _lease_ms bigint[],
    _lease_ids uuid[], _auto_acks boolean[], _at timestamptz
) returns table (
    request int, queue_id int, partition_id bigint, partition_name text, attempt int,
    first_seq bigint, last_seq bigint, segment_id bigint, ordinal int, expires_at timestamptz, lease_id uuid
) language plpgsql as $$
#variable_conflict use_column
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _queue lockstep.queue;
    _rows int;
begin
    for _i in 1 .. cardinality(_group_ids) loop
        select q.* into _queue from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id where g.id = _group_ids[_i];
        _rows := 0;
        if _partition_ids[_i] is null and not _auto_acks[_i] and _queue.delay_seconds + _queue.window_seconds + _queue.max_wait_seconds = 0 then
            return query
            select _i, c.* from lockstep.claim_regular(
                _group_ids[_i], _queue.id, _partition_limits[_i], _batches[_i],
                _now + coalesce(_lease_ms[_i] * interval '1 ms', make_interval(secs => _queue.lease_seconds)), _lease_ids[_i], _now
            ) c;
            get diagnostics _rows = row_count;
        end if;
        if _rows = 0 then
            return query
            select _i, c.* from lockstep.claim(
                _group_ids[_i], _partition_ids[_i], _partition_limits[_i], _batches[_i], _lease_ms[_i], _lease_ids[_i], _auto_acks[_i], _now
            ) c;
        end if;
    end loop;
end $$;

-- The common case in one statement: every due cursor that would be claimed has stored messages next and no expired
-- lease. If one is not like that nothing is claimed, and claim() takes its time.
create function lockstep.claim_regular(
    _group_id int, _queue_id int, _partitions int, _batch int, _until timestamptz, _lease_id uuid, _now timestamptz
) returns table (
    queue_id int, partition_id bigint, partition_name text, attempt int,
    first_seq bigint, last_seq bigint, segment_id bigint, ordinal int, expires_at timestamptz, lease_id uuid
) language plpgsql as $$
#variable_conflict use_column
begin  -- plpgsql, because it keeps the plan
    return query
    with picked as materialized (
        select c.partition_id, c.due_at, c.acked, c.attempts, c.lease_id from lockstep.cursor c
        where c.group_id = _group_id and c.due_at <= _now
        order by c.due_at, c.partition_id limit _partitions for no key update skip locked
    ), reached as materialized (
        select p.partition_id, p.due_at, p.acked, p.attempts, least(l.last_seq, p.acked + _batch) - p.acked as n,
               p.lease_id is null and l.last_seq > p.acked and not exists (
                   select 1 from lockstep.run r where r.partition_id = p.partition_id and r.segment_id is null and r.last_seq > p.acked
               ) as regular
        from picked p
        left join lateral (
            select r.last_seq from lockstep.run r
            where r.partition_id = p.partition_id and r.segment_id is not null order by r.first_seq desc limit 1
        ) l on true
    ), allotted as (
        select r.*, least(r.n, _batch - (sum(r.n) over (order by r.due_at, r.partition_id) - r.n)) as taken
        from reached r where not exists (select 1 from reached x where x.regular is not true)
    ), leased as (
        update lockstep.cursor c set lease_id = _lease_id, lease_to = c.acked + a.taken, leased_at = _now, due_at = _until
        from allotted a
        where a.taken > 0 and c.partition_id = a.partition_id and c.group_id = _group_id
        returning c.partition_id, c.acked, c.lease_to, c.attempts, a.due_at
    )
    select _queue_id, l.partition_id, p.name, l.attempts + 1, greatest(r.first_seq, l.acked + 1), least(r.last_seq, l.lease_to),
           r.segment_id, (r.ordinal + greatest(l.acked + 1 - r.first_seq, 0))::int, _until, _lease_id
    from leased l
    join lockstep.partition p on p.id = l.partition_id
    cross join lateral lockstep.runs_between(l.partition_id, l.acked, l.lease_to) r
    order by l.due_at, l.partition_id, r.first_seq;
end $$;

-- The same for all queues of a namespace and/or task, by priority, under one lease id. The group must exist on them.
create function lockstep.pop_over(
    _group_ids int[], _partition_limit int, _batch int, _lease_ms bigint, _lease_id uuid, _auto_ack boolean, _at timestamptz
) returns table (
    request int, queue_id int, partition_id bigint, partition_name text, attempt int,
    first_seq bigint, last_seq bigint, segment_id bigint, ordinal int, expires_at timestamptz, lease_id uuid
) language plpgsql as $$
#variable_conflict use_column
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _run record;
    _seen bigint := null;
begin
    for _i in 1 .. cardinality(_group_ids) loop
        exit when _partition_limit <= 0 or _batch <= 0;
        for _run in select * from lockstep.claim(_group_ids[_i], null, _partition_limit, _batch, _lease_ms, _lease_id, _auto_ack, _now) loop
            if _run.partition_id is distinct from _seen then
                _partition_limit := _partition_limit - 1;
                _seen := _run.partition_id;
            end if;
            _batch := _batch - (_run.last_seq - _run.first_seq + 1)::int;
            return query select 1, _run.queue_id, _run.partition_id, _run.partition_name, _run.attempt, _run.first_seq, _run.last_seq,
                _run.segment_id, _run.ordinal, _run.expires_at, _run.lease_id;
        end loop;
    end loop;
end $$;

create function lockstep.claim(
    _group_id int, _partition_id bigint, _partitions int, _batch int, _lease_ms bigint, _lease_id uuid, _auto_ack boolean, _now timestamptz
) returns table (
    queue_id int, partition_id bigint, partition_name text, attempt int,
    first_seq bigint, last_seq bigint, segment_id bigint, ordinal int, expires_at timestamptz, lease_id uuid
) language plpgsql as $$
#variable_conflict use_column
declare
    _queue lockstep.queue;
    _picked bigint[];
    _irregular boolean;
    _until timestamptz;
    _from bigint[];
    _to bigint[];
    _claimed bigint[];
    _attempts int[];
    _emptied bigint[];
begin
    select q.* into _queue from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id where g.id = _group_id;
    if not found or (_partition_id is not null and not exists (select 1 from lockstep.partition p where p.id = _partition_id)) then
        raise exception 'the group or partition is gone' using errcode = 'LS001';
    end if;
    _until := _now + coalesce(_lease_ms * interval '1 ms', make_interval(secs => _queue.lease_seconds));
    loop
        _picked := null;
        if _partition_id is null then
            select array_agg(c.partition_id), bool_or(c.irregular) into _picked, _irregular from (
                select c.partition_id, lockstep.is_irregular(c) as irregular from lockstep.cursor c
                where c.group_id = _group_id and c.due_at <= _now
                order by c.due_at, c.partition_id limit _partitions for no key update skip locked
            ) c;
        else
            select array_agg(c.partition_id), bool_or(c.irregular) into _picked, _irregular from (
                select c.partition_id, lockstep.is_irregular(c) as irregular from lockstep.cursor c
                where c.partition_id = _partition_id and c.group_id = _group_id and c.due_at <= _now
                for no key update skip locked
            ) c;
        end if;
        exit when _picked is null;
        _irregular := _irregular or _queue.max_wait_seconds > 0 or _queue.delay_seconds > 0 or _queue.window_seconds > 0;
        if _irregular then  -- one by one: what is not claimed is not put right either
            _picked := _picked[1:1];
            perform lockstep.put_right(_group_id, _picked, _queue, _now);
        end if;

        with candidate as (
            select c.partition_id, c.due_at, c.acked, c.attempts,
                   case when _irregular then lockstep.reach(c.partition_id, c.acked, _batch, _now - make_interval(secs => _queue.delay_seconds))
                        else least(l.last_seq, c.acked + _batch) end as upto
            from lockstep.cursor c
            cross join lateral (  -- lockstep.last_stored, written out: a function with a FROM is not inlined
                select r.last_seq from lockstep.run r
                where r.partition_id = c.partition_id and r.segment_id is not null order by r.first_seq desc limit 1
            ) l
            where c.partition_id = any (_picked) and c.group_id = _group_id and c.due_at <= _now
        ), allotted as (
            select t.*, case
                when _irregular then t.upto - t.acked
                else least(t.upto - t.acked, _batch - (sum(t.upto - t.acked) over (order by t.due_at, t.partition_id) - (t.upto - t.acked)))
                end as n
            from candidate t where t.upto > t.acked
        ), leased as (
            update lockstep.cursor c
            set acked = case when _auto_ack then c.acked + a.n else c.acked end,
                attempts = case when _auto_ack then 0 else c.attempts end,
                consumed_at = case when _auto_ack then _now else c.consumed_at end,
                lease_id = case when not _auto_ack then _lease_id end,
                lease_to = case when not _auto_ack then c.acked + a.n end,
                leased_at = case when not _auto_ack then _now end,
                due_at = case when not _auto_ack then _until else _now end
            from allotted a
            where a.n > 0 and c.partition_id = a.partition_id and c.group_id = _group_id
            returning c.partition_id, a.acked, (a.acked + a.n)::bigint as upto, a.attempts, a.due_at
        )
        select array_agg(l.partition_id order by l.due_at, l.partition_id), array_agg(l.acked order by l.due_at, l.partition_id),
               array_agg(l.upto order by l.due_at, l.partition_id), array_agg(l.attempts order by l.due_at, l.partition_id)
        into _claimed, _from, _to, _attempts from leased l;

        if _claimed is not null then
            return query
            select _queue.id, t.partition_id, p.name, t.attempts + 1, greatest(r.first_seq, t.acked + 1), least(r.last_seq, t.upto),
                   r.segment_id, (r.ordinal + greatest(t.acked + 1 - r.first_seq, 0))::int, case when not _auto_ack then _until end, _lease_id
            from unnest(_claimed, _from, _to, _attempts) with ordinality t (partition_id, acked, upto, attempts, o)
            join lockstep.partition p on p.id = t.partition_id
            cross join lateral lockstep.runs_between(t.partition_id, t.acked, t.upto) r
            order by t.o, r.first_seq;
            _partitions := _partitions - cardinality(_claimed);
            _batch := _batch - (
                select sum(case when _irregular then lockstep.stored_between(t.id, t.f, t.u) else t.u - t.f end)
                from unnest(_claimed, _from, _to) t (id, f, u))::int;
        end if;
        -- Where nothing was leased, or all was acknowledged at once, the cursor may have nothing ahead.
        select array_agg(t.id) into _emptied from unnest(_picked) t (id)
        where _auto_ack or (_batch > 0 and t.id <> all (coalesce(_claimed, '{}')));
        if _emptied is not null then
            if _auto_ack and _claimed is not null then
                perform lockstep.count_moves(array_fill(_group_id, array[cardinality(_claimed)]), _claimed, _from, _to);
            end if;
            perform lockstep.settle_due(_group_id, _emptied, _queue, _now);
        end if;
        -- A cursor that was due and gave nothing must not keep the others from being served.
        exit when _partitions <= 0 or _batch <= 0 or _partition_id is not null;
        exit when not _irregular and cardinality(_picked) = cardinality(_claimed);
    end loop;
end $$;

-- Whether a due cursor needs more than a lease: an expired lease, or removed messages after it.
create function lockstep.is_irregular(_cursor lockstep.cursor) returns boolean language sql stable as $$
    select _cursor.lease_id is not null or exists (
        select 1 from lockstep.run r
        where r.partition_id = _cursor.partition_id and r.segment_id is null and r.last_seq > _cursor.acked
    )
$$;

-- The runs that cover the stored messages in (_after, _upto].
create function lockstep.runs_between(_partition_id bigint, _after bigint, _upto bigint) returns setof lockstep.run language sql stable as $$
    select r.* from lockstep.run r
    where r.partition_id = _partition_id and r.first_seq <= _upto and r.last_seq > _after and r.segment_id is not null
      and r.first_seq >= coalesce(
          (select f.first_seq from lockstep.run f where f.partition_id = _partition_id and f.first_seq <= _after + 1 order by f.first_seq desc limit 1), 0)
$$;

-- The last seq of at most _batch stored messages after _acked, all created at or before _time; null if there is none.
create function lockstep.reach(_partition_id bigint, _acked bigint, _batch int, _time timestamptz) returns bigint language sql stable as $$
    select max(case when t.before + t.n <= _batch then t.last_seq else t.first_seq + _batch - t.before - 1 end)
    from (
        select r.*, sum(r.n) over (order by r.first_seq) - r.n as before
        from (
            select greatest(r.first_seq, _acked + 1) as first_seq, r.last_seq, r.last_seq - greatest(r.first_seq, _acked + 1) + 1 as n
            from lockstep.run r join lockstep.segment s on s.id = r.segment_id
            where r.partition_id = _partition_id and r.last_seq > _acked and s.created_at <= _time
              and r.first_seq >= coalesce(
                  (select f.first_seq from lockstep.run f where f.partition_id = _partition_id and f.first_seq <= _acked + 1 order by f.first_seq desc limit 1), 0)
            order by r.first_seq limit _batch
        ) r
    ) t
    where t.before < _batch
$$;

-- Puts locked, due cursors right before they are claimed: passes what was removed, charges an expired lease
-- (rules.expire), passes what waited too long; then says anew when each is due.
create function lockstep.put_right(_group_id int, _partition_ids bigint[], _queue lockstep.queue, _now timestamptz) returns void language plpgsql as $$
declare
    _cursor lockstep.cursor;
    _acked bigint;
    _attempts int;
    _head bigint;
    _stopped boolean;
begin
    for _cursor in
        select c.* from lockstep.cursor c where c.group_id = _group_id and c.partition_id = any (_partition_ids)
    loop
        _acked := _cursor.acked;
        _attempts := _cursor.attempts;
        _stopped := false;
        _head := lockstep.next_seq(_cursor.partition_id, _acked);
        if coalesce(_head - 1, lockstep.last_seq(_cursor.partition_id)) > _acked then
            _acked := coalesce(_head - 1, lockstep.last_seq(_cursor.partition_id));
            _attempts := 0;
        end if;
        if _cursor.lease_id is not null and _head is not null then
            _attempts := _attempts + 1;
            if _attempts > _queue.retry_limit then
                if _queue.on_exhausted = 'stop' then
                    _stopped := true;
                else
                    if _queue.on_exhausted = 'dead' then
                        insert into lockstep.dead_letter (queue_id, partition_id, seq, group_name, attempts, error, failed_at)
                        select _queue.id, _cursor.partition_id, _head, g.name, _attempts, 'lease expired', _now
                        from lockstep.consumer_group g where g.id = _group_id;
                    end if;
                    _acked := _head;
                    _attempts := 0;
                end if;
            end if;
        end if;
        if _queue.max_wait_seconds > 0 and not _stopped then
            _head := lockstep.seq_at(_cursor.partition_id, _now - make_interval(secs => _queue.max_wait_seconds), true);
            if _head > _acked then
                _acked := _head;
                _attempts := 0;
            end if;
        end if;
        update lockstep.cursor c
        set acked = _acked, attempts = _attempts, lease_id = null, lease_to = null, leased_at = null,
            consumed_at = case when _acked > c.acked then _now else c.consumed_at end,
            due_at = case when _stopped then 'infinity' else c.due_at end
        where c.partition_id = _cursor.partition_id and c.group_id = _group_id;
        perform lockstep.count_moves(array[_group_id], array[_cursor.partition_id], array[_cursor.acked], array[_acked]);
    end loop;
    perform lockstep.settle_due(_group_id, _partition_ids, _queue, _now);
end $$;

-- Says anew when locked cursors without a lease are due. Drained ones are written down under the partition lock,
-- which is only tried; where it is not to be had they are left due a moment later, for the next pop to look again.
create function lockstep.settle_due(_group_id int, _partition_ids bigint[], _queue lockstep.queue, _now timestamptz) returns void language plpgsql as $$
declare
    _locked bigint[];
begin
    select array_agg(p.id) into _locked from (
        select p.id from lockstep.cursor c join lockstep.partition p on p.id = c.partition_id
        where c.group_id = _group_id and c.partition_id = any (_partition_ids) and c.lease_id is null
          and coalesce(lockstep.last_stored(c.partition_id), 0) <= c.acked
        order by p.id for no key update of p skip locked
    ) p;
    update lockstep.cursor c
    set due_at = case
        when t.due_at is not null then t.due_at
        when c.partition_id = any (coalesce(_locked, '{}')) then null
        else _now + interval '10 ms' end
    from (
        select c.partition_id, lockstep.due_at(c.partition_id, c.acked, _queue.delay_seconds, _queue.window_seconds, c.due_at) as due_at
        from lockstep.cursor c
        where c.group_id = _group_id and c.partition_id = any (_partition_ids) and c.lease_id is null and c.due_at <> 'infinity'
    ) t
    where c.partition_id = t.partition_id and c.group_id = _group_id and c.due_at is distinct from t.due_at;
end $$;

-- Whether a pop may find something, by group and, where not null, partition. Yes for a group that is gone: its next
-- pop starts afresh.
create function lockstep.has_pending(_group_ids int[], _partition_ids bigint[], _at timestamptz) returns boolean[] language sql stable as $$
    select array_agg(
        not exists (select 1 from lockstep.consumer_group g where g.id = t.group_id)
        or case when t.partition_id is null then exists (
            select 1 from lockstep.cursor c where c.group_id = t.group_id and c.due_at <= coalesce(_at, clock_timestamp())
        ) else exists (
            select 1 from lockstep.cursor c
            where c.partition_id = t.partition_id and c.group_id = t.group_id and c.due_at <= coalesce(_at, clock_timestamp())
        ) end order by t.o)
    from unnest(_group_ids, _partition_ids) with ordinality t (group_id, partition_id, o)
$$;
