-- Pop of shared groups: first messages due for redelivery, then new messages (core/shared.py).
--
-- A pop of new messages moves the cursor past them, as an auto-ack does, and adds a range with their lease. The cursor
-- is free again when the pop commits: the next consumer continues from there.
-- Guarantees: a message is under one live lease; at most _batch messages of at most _partitions partitions, earliest
-- due first.
-- Locks: cursor rows and delivery rows with SKIP LOCKED, as in pop.sql; that a cursor is drained is recorded under the
-- partition lock, which is only tried. Two pops of one partition compete for its cursor, so a pop that found nothing
-- while something is due waits a moment for the holder and tries again.
-- Indexes: delivery_due, cursor_due, cursor_pkey, run_pkey.

-- Same as lockstep.pop, for claims of shared groups.
-- _alone: the transaction does nothing else. It then commits without waiting for the disk: if a crash loses the lease,
-- the messages are as if they had not been leased, and are delivered again.
create or replace function lockstep.shared_pop(
    _requests int[], _group_ids int[], _partition_ids bigint[], _partition_limits int[], _batches int[], _lease_ms bigint[],
    _lease_ids uuid[], _auto_acks boolean[], _at timestamptz, _alone boolean default false
) returns setof lockstep.popped language plpgsql as $$
declare
    _group_id int;
    _paused boolean;
    _run lockstep.popped;
    _taken bigint[];
    _batch int;
    _rows int;
    _last int;
    _served int[] := '{}';
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.check_spans(_lease_ms), lockstep.need_groups('{pop}', _group_ids, _partition_ids); end if;
    if _alone and true <> all (_auto_acks) then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    for _i in 1 .. cardinality(_group_ids) loop
        if _requests[_i] is distinct from _requests[_i - 1] then
            _taken := '{}';
            _batch := _batches[_i];
        end if;
        continue when _batch <= 0 or _requests[_i] = any (_served);
        if _group_ids[_i] is distinct from _group_id then
            _group_id := _group_ids[_i];
            _paused := lockstep.is_paused(_group_id);
        end if;
        continue when _paused;
        if _partition_ids[_i] is null and not _auto_acks[_i] and _requests[_i] not in (coalesce(_requests[_i - 1], -1), coalesce(_requests[_i + 1], -1)) then
            _last := _i;
            while _group_ids[_last + 1] = _group_ids[_i] and _partition_ids[_last + 1] is null and not _auto_acks[_last + 1]
                  and _requests[_last + 1] <> _requests[_last] and _requests[_last + 2] is distinct from _requests[_last + 1] loop
                _last := _last + 1;
            end loop;
            if _last > _i or _partition_limits[_i] = 1 then
                for _run in
                    select c.* from lockstep.shared_claim_joined(
                        _group_ids[_i], _requests[_i:_last], _batches[_i:_last], _lease_ms[_i:_last], _lease_ids[_i:_last], coalesce(_at, clock_timestamp())) c
                loop
                    _served := _served || _run.request;
                    return next _run;
                end loop;
                continue when _requests[_i] = any (_served);
            end if;
            return query
            select c.* from lockstep.shared_claim_regular(
                _requests[_i], _group_ids[_i], _partition_limits[_i], _batch, _lease_ms[_i], _lease_ids[_i], coalesce(_at, clock_timestamp())) c;
            get diagnostics _rows = row_count;
            continue when _rows > 0;
        end if;
        for _run in
            select c.* from lockstep.shared_claim(
                _requests[_i], _group_ids[_i], _partition_ids[_i], _partition_limits[_i], _taken, _batch, _lease_ms[_i], _lease_ids[_i], _auto_acks[_i], _at) c
        loop
            -- The row which says that more is due has no partition.
            _taken := case when _run.partition_id is null or _run.partition_id = any (_taken) then _taken else _taken || _run.partition_id end;
            _batch := _batch - coalesce(_run.last_seq - _run.first_seq + 1, 0)::int;
            return next _run;
        end loop;
    end loop;
end $$;

-- New messages of one partition, the common case, for one request or for several requests of one group at once: each
-- gets the messages after those of the previous one. Several are served here only if no other partition is due.
-- Otherwise, or if a message must be examined, nothing is claimed, and the caller takes another path.
create or replace function lockstep.shared_claim_joined(
    _group_id int, _requests int[], _batches int[], _lease_ms bigint[], _lease_ids uuid[], _now timestamptz
) returns setof lockstep.popped language plpgsql as $$
declare
    _lease interval;
    _partition_id bigint;
    _acked bigint;
    _last bigint;
    _upto bigint;
begin
    select make_interval(secs => q.lease_seconds) into _lease
    from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id
    where g.id = _group_id and lockstep.is_regular(q)
      and not exists (select 1 from lockstep.delivery d where d.group_id = _group_id and d.due_at <= _now);
    if not found or (cardinality(_requests) > 1 and 1 < (
        select count(*) from (select 1 from lockstep.cursor c where c.group_id = _group_id and c.due_at <= _now limit 2) c)) then
        return;
    end if;
    select c.partition_id, c.acked into _partition_id, _acked from lockstep.cursor c
    where c.group_id = _group_id and c.due_at <= _now order by c.due_at, c.partition_id limit 1 for no key update skip locked;
    if not found then
        return;
    end if;
    select l.last_seq into _last
    from (select r.last_seq from lockstep.run r where r.partition_id = _partition_id and r.segment_id is not null order by r.first_seq desc limit 1) l
    where l.last_seq > _acked
      and not exists (select 1 from lockstep.run r where r.partition_id = _partition_id and r.segment_id is null and r.last_seq > _acked);
    if not found then
        return;
    end if;
    _upto := least(_last, _acked + (select sum(b) from unnest(_batches) b));
    -- An emptied cursor may be drained, which is checked below; if a push is in flight there, the next pop checks.
    update lockstep.cursor c
    set acked = _upto, consumed_at = _now, due_at = case when _upto < _last then _now else _now + interval '10 ms' end
    where c.partition_id = _partition_id and c.group_id = _group_id;
    return query
    with share as materialized (
        select t.request, t.lease_id, _acked + t.upto - t.batch + 1 as from_seq, least(_acked + t.upto, _upto) as to_seq,
               _now + coalesce(t.ms * interval '1 ms', _lease) as until
        from (
            select t.request, t.lease_id, t.ms, t.batch, sum(t.batch) over (order by t.o)::bigint as upto
            from unnest(_requests, _batches, _lease_ms, _lease_ids) with ordinality t (request, batch, ms, lease_id, o)
        ) t
        where _acked + t.upto - t.batch < _upto
    ), kept as (
        insert into lockstep.delivery (partition_id, group_id, from_seq, to_seq, lease_id, leased_at, due_at, attempts)
        select _partition_id, _group_id, s.from_seq, s.to_seq, s.lease_id, _now, s.until, 0 from share s
    )
    select r.* from share s
    cross join lateral lockstep.popped_runs(s.request, _partition_id, 1, s.from_seq - 1, s.to_seq, s.until, s.lease_id) r
    order by s.from_seq, r.first_seq;
    if _upto = _last then
        perform lockstep.shared_drain(_group_id, array[_partition_id], _now);
    end if;
end $$;

-- Records which of the cursors whose last messages were just leased are drained: under the partition lock, which is
-- only tried. Messages that arrived in between must not wait.
create or replace function lockstep.shared_drain(_group_id int, _partition_ids bigint[], _now timestamptz) returns void language plpgsql as $$
declare
    _drained bigint[];
begin
    _drained := array(select p.id from lockstep.partition p where p.id = any (_partition_ids) order by p.id for no key update skip locked);
    if _drained <> '{}' then
        update lockstep.cursor c
        set due_at = case when coalesce(lockstep.last_stored(c.partition_id), 0) > c.acked then _now end
        where c.partition_id = any (_drained) and c.group_id = _group_id;
    end if;
end $$;

-- Claims what one group, or one partition of it, has for a request. _taken are the partitions that the request already
-- has.
create or replace function lockstep.shared_claim(
    _request int, _group_id int, _partition_id bigint, _partitions int, _taken bigint[], _batch int, _lease_ms bigint, _lease_id uuid, _auto_ack boolean, _at timestamptz
) returns setof lockstep.popped language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _queue lockstep.queue;
    _run lockstep.popped;
    _until timestamptz;
    _wanted int := _batch;
    _rows int;
begin
    select q.* into _queue from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id where g.id = _group_id;
    if not found or (_partition_id is not null and not exists (select 1 from lockstep.partition p where p.id = _partition_id)) then
        raise exception 'the group or partition is gone' using errcode = 'LS001';
    end if;
    for _look in 1 .. 3 loop
        _rows := 0;
        _until := _now + coalesce(_lease_ms * interval '1 ms', make_interval(secs => _queue.lease_seconds));
        if exists (select 1 from lockstep.delivery d where d.group_id = _group_id and d.due_at <= _now) then
            for _run in
                select c.* from lockstep.shared_claim_again(_request, _group_id, _partition_id, _partitions, _taken, _batch, _until, _lease_id, _auto_ack, _queue, _now) c
            loop
                _taken := case when _run.partition_id is null or _run.partition_id = any (_taken) then _taken else _taken || _run.partition_id end;
                _batch := _batch - coalesce(_run.last_seq - _run.first_seq + 1, 0)::int;
                return next _run;
            end loop;
        end if;
        if _batch > 0 then
            return query select c.* from lockstep.shared_claim_new(_request, _group_id, _partition_id, _partitions, _taken, _batch, _until, _lease_id, _auto_ack, _queue, _now) c;
            get diagnostics _rows = row_count;
        end if;
        exit when _rows > 0 or _batch < _wanted;
        _now := coalesce(_at, clock_timestamp());
        exit when not lockstep.shared_await(_group_id, _partition_id, _now);
    end loop;
end $$;

-- Claims due ranges one after the other, and puts each right before it is leased. What does not fit stays unchanged.
-- When the transaction may skip no more messages, partitions that would need it are left; a row without a partition
-- says so.
create or replace function lockstep.shared_claim_again(
    _request int, _group_id int, _partition_id bigint, _partitions int, _taken bigint[], _batch int, _until timestamptz, _lease_id uuid, _auto_ack boolean,
    _queue lockstep.queue, _now timestamptz
) returns setof lockstep.popped language plpgsql as $$
declare
    _at_partition bigint;
    _passed bigint[] := '{}';
    _left int := 0;
    _range lockstep.delivery;
    _n bigint;
    _upto bigint;
begin
    while _batch > 0 loop
        select d.partition_id into _at_partition from lockstep.delivery d
        where d.group_id = _group_id and d.due_at <= _now and d.partition_id = coalesce(_partition_id, d.partition_id)
          and (cardinality(_taken) < _partitions or d.partition_id = any (_taken)) and d.partition_id <> all (_passed)
        order by d.due_at, d.partition_id, d.from_seq limit 1;
        exit when not found;
        -- The cursor first: a range locked without it would be withheld from the holder of the cursor.
        perform 1 from lockstep.cursor c where c.partition_id = _at_partition and c.group_id = _group_id for no key update skip locked;
        if found then
            select d.* into _range from lockstep.delivery d
            where d.partition_id = _at_partition and d.group_id = _group_id and d.due_at <= _now
            order by d.due_at, d.from_seq limit 1 for update skip locked;
        end if;
        if not found then
            _passed := _passed || _at_partition;
            continue;
        end if;
        if not lockstep.shared_put_right(_range, _queue, _now) then
            if lockstep.passes_left() = 0 then
                _passed := _passed || _at_partition;
                _left := _left + 1;
                exit when _left = 100;
            end if;
            continue;
        end if;
        _n := lockstep.still_stored(_range.partition_id, _range.from_seq - 1, _range.to_seq);
        _upto := case when _n <= _batch then _range.to_seq else lockstep.reach(_range.partition_id, _range.from_seq - 1, _batch, 'infinity') end;
        return query select * from lockstep.popped_runs(
            _request, _range.partition_id, _range.attempts + 1, _range.from_seq - 1, _upto, case when not _auto_ack then _until end, _lease_id);
        if _auto_ack then
            delete from lockstep.delivery d
            where d.partition_id = _range.partition_id and d.group_id = _group_id and d.from_seq = _range.from_seq;
            perform lockstep.count_moves(array[_group_id], array[_range.partition_id], array[_range.from_seq - 1], array[_upto]);
        else
            update lockstep.delivery d set to_seq = _upto, lease_id = _lease_id, leased_at = _now, due_at = _until
            where d.partition_id = _range.partition_id and d.group_id = _group_id and d.from_seq = _range.from_seq;
        end if;
        if _upto < _range.to_seq then
            insert into lockstep.delivery (partition_id, group_id, from_seq, to_seq, due_at, attempts)
            values (_range.partition_id, _group_id, _upto + 1, _range.to_seq, _range.due_at, _range.attempts);
        end if;
        if _range.partition_id <> all (_taken) then
            _taken := _taken || _range.partition_id;
        end if;
        _batch := _batch - least(_n, _batch)::int;
    end loop;
    if _left > 0 then
        return next lockstep.more_is_due(_request, _queue.id);
    end if;
end $$;

-- Puts a locked, due range right: forgets it if its messages were removed, charges an expired lease (shared.expire),
-- skips messages that waited too long or expired, as many as this transaction may. False if anything was changed, or
-- would have to be: then the range must be looked for again.
create or replace function lockstep.shared_put_right(_range lockstep.delivery, _queue lockstep.queue, _now timestamptz) returns boolean language plpgsql as $$
declare
    _overdue bigint;
    _to bigint;
begin
    if lockstep.still_stored(_range.partition_id, _range.from_seq - 1, _range.to_seq) = 0 then
        delete from lockstep.delivery d
        where d.partition_id = _range.partition_id and d.group_id = _range.group_id and d.from_seq = _range.from_seq;
        return false;
    end if;
    if _range.lease_id is not null and (not lockstep.exhausted(lockstep.charged(_range.attempts), _queue) or _queue.on_exhausted = 'stop') then
        update lockstep.delivery d
        set lease_id = null, leased_at = null, attempts = lockstep.charged(d.attempts),
            due_at = case when lockstep.exhausted(lockstep.charged(d.attempts), _queue) then 'infinity' else d.due_at end
        where d.partition_id = _range.partition_id and d.group_id = _range.group_id and d.from_seq = _range.from_seq;
        return false;
    end if;
    if _range.lease_id is not null then
        _to := least(_range.to_seq, _range.from_seq + lockstep.passes_left() - 1);
        if _to < _range.from_seq then
            return false;
        end if;
        perform lockstep.note_passes(_to - _range.from_seq + 1);
        if _queue.on_exhausted = 'dead' then
            perform lockstep.shared_deaths(
                _queue.id, _range.group_id, _range.partition_id, _range.from_seq, _to, lockstep.charged(_range.attempts), 'lease expired', _now);
        end if;
        perform lockstep.shared_end_seqs(_range, array(select generate_series(_range.from_seq, _to)));
        return false;
    end if;
    if _queue.max_wait_seconds > 0 then
        _overdue := lockstep.waited_upto(_range.partition_id, _range.from_seq - 1, _now - make_interval(secs => _queue.max_wait_seconds));
        if _overdue >= _range.from_seq then
            perform lockstep.shared_end_seqs(_range, array(select generate_series(_range.from_seq, least(_overdue, _range.to_seq))));
            return false;
        end if;
    end if;
    return not lockstep.shared_pass_expired(_range, _queue, _now);
end $$;

-- Removes seqs from a locked range permanently.
create or replace function lockstep.shared_end_seqs(_range lockstep.delivery, _seqs bigint[]) returns void language plpgsql as $$
begin
    delete from lockstep.delivery d
    where d.partition_id = _range.partition_id and d.group_id = _range.group_id and d.from_seq = _range.from_seq;
    insert into lockstep.delivery (partition_id, group_id, from_seq, to_seq, lease_id, leased_at, due_at, attempts)
    select _range.partition_id, _range.group_id, t.from_seq, t.to_seq, _range.lease_id, _range.leased_at, _range.due_at, _range.attempts
    from lockstep.range_without(_range.from_seq, _range.to_seq, _seqs) t
    where lockstep.still_stored(_range.partition_id, t.from_seq - 1, t.to_seq) > 0;
    perform lockstep.count_moves(
        array_agg(_range.group_id), array_agg(_range.partition_id), array_agg(t.seq - 1), array_agg(t.seq)) from unnest(_seqs) t (seq);
end $$;

-- New messages, the common case, in one statement: nothing is due for redelivery, the queue has no policy that concerns
-- single messages, and every due cursor that would be claimed is followed by stored messages. Otherwise nothing is
-- claimed, and shared_claim does it step by step.
create or replace function lockstep.shared_claim_regular(
    _request int, _group_id int, _partitions int, _batch int, _lease_ms bigint, _lease_id uuid, _now timestamptz
) returns setof lockstep.popped language plpgsql as $$
declare
    _until timestamptz;
begin
    select _now + coalesce(_lease_ms * interval '1 ms', make_interval(secs => q.lease_seconds)) into _until
    from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id
    where g.id = _group_id and lockstep.is_regular(q)
      and not exists (select 1 from lockstep.delivery d where d.group_id = _group_id and d.due_at <= _now);
    if not found then
        return;
    end if;
    return query
    with picked as materialized (
        select c.partition_id, c.due_at, c.acked from lockstep.cursor c
        where c.group_id = _group_id and c.due_at <= _now
        order by c.due_at, c.partition_id limit _partitions for no key update skip locked
    ), reached as materialized (
        select p.partition_id, p.due_at, p.acked, l.last_seq - p.acked as ahead, least(l.last_seq - p.acked, _batch) as n,
               l.last_seq > p.acked and not exists (
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
    ), handed_out as (
        -- An emptied cursor may be drained, which is checked below; if a push is in flight there, the next pop checks.
        update lockstep.cursor c
        set acked = c.acked + a.taken, consumed_at = _now, due_at = case when a.taken < a.ahead then _now else _now + interval '10 ms' end
        from allotted a
        where a.taken > 0 and c.partition_id = a.partition_id and c.group_id = _group_id
        returning c.partition_id, a.acked, c.acked as upto, a.due_at
    ), kept as (
        insert into lockstep.delivery (partition_id, group_id, from_seq, to_seq, lease_id, leased_at, due_at, attempts)
        select h.partition_id, _group_id, h.acked + 1, h.upto, _lease_id, _now, _until, 0 from handed_out h
    )
    select r.* from handed_out h
    cross join lateral lockstep.popped_runs(_request, h.partition_id, 1, h.acked, h.upto, _until, _lease_id) r
    order by h.due_at, h.partition_id, r.first_seq;
    perform lockstep.shared_drain(_group_id, array(
        select d.partition_id from lockstep.delivery d
        where d.lease_id = _lease_id and coalesce(lockstep.last_stored(d.partition_id), 0) <= d.to_seq), _now);
end $$;

-- New messages, one cursor after the other, like lockstep.claim for ordered groups.
create or replace function lockstep.shared_claim_new(
    _request int, _group_id int, _partition_id bigint, _partitions int, _taken bigint[], _batch int, _until timestamptz, _lease_id uuid, _auto_ack boolean,
    _queue lockstep.queue, _now timestamptz
) returns setof lockstep.popped language plpgsql as $$
declare
    _next lockstep.next_claim;
    _cursor lockstep.cursor;
begin
    while _batch > 0 loop
        _next := lockstep.find_claim(_next, _group_id, _partition_id, _partitions, _taken, _batch, _queue, _now);
        exit when _next.upto is null;
        _cursor := _next.at;
        return query select * from lockstep.popped_runs(
            _request, _cursor.partition_id, 1, _cursor.acked, _next.upto, case when not _auto_ack then _until end, _lease_id);
        update lockstep.cursor c
        set acked = _next.upto, attempts = 0, consumed_at = _now, due_at = lockstep.due_or_drained(c.partition_id, _next.upto, _queue, _now, _now)
        where c.partition_id = _cursor.partition_id and c.group_id = _group_id;
        if _auto_ack then
            perform lockstep.count_moves(array[_group_id], array[_cursor.partition_id], array[_cursor.acked], array[_next.upto]);
        else
            insert into lockstep.delivery (partition_id, group_id, from_seq, to_seq, lease_id, leased_at, due_at, attempts)
            values (_cursor.partition_id, _group_id, _cursor.acked + 1, _next.upto, _lease_id, _now, _until, 0);
        end if;
        if _cursor.partition_id <> all (_taken) then
            _taken := _taken || _cursor.partition_id;
        end if;
        _batch := _batch - lockstep.stored_between(_cursor.partition_id, _cursor.acked, _next.upto)::int;
    end loop;
    if _next.more or _next.passed <> '{}' then
        return next lockstep.more_is_due(_request, _queue.id);
    end if;
end $$;

-- If something is due, waits until the first of it is unlocked, for no longer than a commit should take. False if
-- nothing is due, or if it stays locked for longer.
create or replace function lockstep.shared_await(_group_id int, _partition_id bigint, _now timestamptz) returns boolean language plpgsql as $$
declare
    _patience text := current_setting('lock_timeout');
    _at_partition bigint;
begin
    select t.partition_id into _at_partition
    from (
        (select c.partition_id, c.due_at from lockstep.cursor c
         where c.group_id = _group_id and c.due_at <= _now and c.partition_id = coalesce(_partition_id, c.partition_id)
         order by c.due_at limit 1)
        union all
        (select d.partition_id, d.due_at from lockstep.delivery d
         where d.group_id = _group_id and d.due_at <= _now and d.partition_id = coalesce(_partition_id, d.partition_id)
         order by d.due_at limit 1)
    ) t order by t.due_at limit 1;
    if not found then
        return false;
    end if;
    begin
        perform set_config('lock_timeout', '500ms', true);
        perform 1 from lockstep.cursor c where c.partition_id = _at_partition and c.group_id = _group_id for no key update;
        perform set_config('lock_timeout', _patience, true);
        return true;
    exception when lock_not_available then
        return false;
    end;
end $$;
