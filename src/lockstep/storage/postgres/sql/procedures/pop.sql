-- Pop: finds due cursors, leases them, and returns the runs that they cover. The caller fetches the bodies, unless it
-- has them.
--
-- Finding work is one index range, (group_id, due_at): null = drained, the past = ready, a lease's deadline while
-- leased, a retry time while backing off. An expired lease therefore needs no background job: its due_at has passed and
-- the next pop finds it. A partition that was served gets a later due_at and moves to the tail, which makes pops fair.
--
-- Guarantees: one live lease per partition and group; earliest due first; at most _batch messages in all; nothing for a
-- group that is paused.
-- Locks: cursor rows, with SKIP LOCKED: a pop never waits for a lock. If a cursor turns out to be drained, the
-- partition row must be locked before that is recorded (otherwise the wake-up of a push in flight is lost). This is
-- against the lock order and therefore only tried. If a push holds the row, messages are coming: the cursor is left due
-- a little later.
-- Indexes: cursor_due, cursor_pkey, run_pkey.

-- One claim per array position: a group's due partitions, or one partition of it. Claims of the same request are
-- adjacent and share its limits and its lease id. If _partition_ids[i] is null, any partition is claimed; if
-- _lease_ms[i] is null, the queue's lease time applies. A row without a partition says that more is due, behind more
-- expired messages than this transaction may skip.
create or replace function lockstep.pop(
    _requests int[], _group_ids int[], _partition_ids bigint[], _partition_limits int[], _batches int[], _lease_ms bigint[],
    _lease_ids uuid[], _auto_acks boolean[], _at timestamptz
) returns setof lockstep.popped language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _group_id int;
    _group record;
    _queue lockstep.queue;
    _run lockstep.popped;
    _rows int;
    _partitions int;
    _batch int;
    _last_partition bigint;
    _last int := 0;
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.check_spans(_lease_ms), lockstep.need_groups('{pop}', _group_ids, _partition_ids); end if;
    for _i in 1 .. cardinality(_group_ids) loop
        continue when _i <= _last;  -- claimed together with an earlier one
        if _requests[_i] is distinct from _requests[_i - 1] then
            _partitions := _partition_limits[_i];
            _batch := _batches[_i];
        end if;
        if _group_ids[_i] is distinct from _group_id then
            _group_id := _group_ids[_i];
            select q as queue, g.paused_at into _group from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id where g.id = _group_id;
            _queue := _group.queue;
        end if;
        continue when _group.paused_at is not null;
        if _requests[_i] in (_requests[_i - 1], _requests[_i + 1]) then
            for _run in
                select * from lockstep.claim(
                    _requests[_i], _group_ids[_i], _partition_ids[_i], _partitions, _batch, _lease_ms[_i], _lease_ids[_i], _auto_acks[_i], _now)
            loop
                return next _run;
                continue when _run.partition_id is null;
                _partitions := _partitions - (_run.partition_id is distinct from _last_partition)::int;
                _batch := _batch - (_run.last_seq - _run.first_seq + 1)::int;
                _last_partition := _run.partition_id;
            end loop;
            continue;
        end if;
        _rows := 0;
        if _partition_ids[_i] is null and not _auto_acks[_i] and lockstep.is_regular(_queue) then
            _last := _i;
            while _group_ids[_last + 1] = _group_id and _partition_ids[_last + 1] is null and not _auto_acks[_last + 1]
                  and _requests[_last + 1] <> _requests[_last] and _requests[_last + 1] is distinct from _requests[_last + 2] loop
                _last := _last + 1;
            end loop;
            return query
            select c.* from lockstep.claim_regular(
                _requests[_i:_last], _group_id, _queue.id, _queue.lease_seconds, _partition_limits[_i:_last], _batches[_i:_last],
                _lease_ms[_i:_last], _lease_ids[_i:_last], _now
            ) c;
            get diagnostics _rows = row_count;
        end if;
        if _rows = 0 then
            _last := _i;
            return query
            select c.* from lockstep.claim(
                _requests[_i], _group_ids[_i], _partition_ids[_i], _partitions, _batch, _lease_ms[_i], _lease_ids[_i], _auto_acks[_i], _now
            ) c;
        end if;
    end loop;
end $$;

-- The common case: every due cursor that is claimed is followed by stored messages and has no expired lease. Several
-- requests of a group, each with its own limits and lease, are claimed together: the next one continues where the
-- previous one has enough. If any cursor is different nothing is claimed, and claim() processes them one by one.
create or replace function lockstep.claim_regular(
    _requests int[], _group_id int, _queue_id int, _lease_seconds int, _partition_limits int[], _batches int[], _lease_ms bigint[],
    _lease_ids uuid[], _now timestamptz
) returns setof lockstep.popped language plpgsql as $$
declare
    -- Rows are fetched, and thereby locked, one at a time: how many are needed depends on their messages.
    _due no scroll cursor for
        select c.*,
               (select r.last_seq from lockstep.run r
                where r.partition_id = c.partition_id and r.segment_id is not null order by r.first_seq desc limit 1) as stored_to,
               exists (
                   select 1 from lockstep.run r where r.partition_id = c.partition_id and r.segment_id is null and r.last_seq > c.acked
               ) as removed
        from (
            select c.partition_id, c.acked, c.lease_id from lockstep.cursor c
            where c.group_id = _group_id and c.due_at <= _now
            order by c.due_at, c.partition_id limit (select sum(n) from unnest(_partition_limits) n) for no key update skip locked
        ) c;
    _cursor record;
    _batch int;
    _taken int;
    _claimed bigint[];
    _claimed_to bigint[];
    _claimed_for int[];
begin
    open _due;
    <<requests>>
    for _i in 1 .. cardinality(_requests) loop
        _batch := _batches[_i];
        for _ in 1 .. _partition_limits[_i] loop
            fetch _due into _cursor;
            exit requests when not found;
            if _cursor.lease_id is not null or _cursor.removed or (_cursor.stored_to > _cursor.acked) is not true then
                close _due;
                return;
            end if;
            _taken := least(_cursor.stored_to - _cursor.acked, _batch);
            _claimed := _claimed || _cursor.partition_id;
            _claimed_to := _claimed_to || (_cursor.acked + _taken);
            _claimed_for := _claimed_for || _i;
            _batch := _batch - _taken;
            exit when _batch = 0;
        end loop;
    end loop;
    close _due;
    if _claimed is null then
        return;
    end if;
    return query
    with leased as (
        update lockstep.cursor c
        set lease_id = _lease_ids[t.i], lease_to = t.upto, leased_at = _now,
            due_at = _now + coalesce(_lease_ms[t.i] * interval '1 ms', make_interval(secs => _lease_seconds))
        from (
            -- The limit makes the plan look up a cursor by both columns: the planner may believe that a group has few
            -- cursors.
            select t.*, _group_id as group_id from unnest(_claimed, _claimed_to, _claimed_for) with ordinality t (partition_id, upto, i, o)
            limit cardinality(_claimed)
        ) t
        where c.partition_id = t.partition_id and c.group_id = t.group_id
        returning c.partition_id, c.acked, c.lease_to, c.attempts, c.due_at, c.lease_id, t.i, t.o
    )
    select r.* from leased l
    cross join lateral lockstep.popped_runs(_requests[l.i], l.partition_id, l.attempts + 1, l.acked, l.lease_to, l.due_at, l.lease_id) r
    order by l.o, r.first_seq;
end $$;

-- Claims one cursor after the other, and puts each right first: for named partitions, auto-ack, queues with a delay, a
-- window, a longest wait or an expiry, balanced queues (whose fullest partition comes first), expired leases, and
-- positions before removed messages. It skips as many expired messages as its transaction may, and passes as many
-- cursors with nothing to claim; after that it still looks for a cursor whose next message is not expired, but not for
-- long. A row without a partition says that something was left.
create or replace function lockstep.claim(
    _request int, _group_id int, _partition_id bigint, _partitions int, _batch int, _lease_ms bigint, _lease_id uuid, _auto_ack boolean, _now timestamptz
) returns setof lockstep.popped language plpgsql as $$
declare
    _queue lockstep.queue;
    _next lockstep.next_claim;
    _cursor lockstep.cursor;
    _until timestamptz;
begin
    select q.* into _queue from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id where g.id = _group_id;
    if not found or (_partition_id is not null and not exists (select 1 from lockstep.partition p where p.id = _partition_id)) then
        raise exception 'the group or partition is gone' using errcode = 'LS001';
    end if;
    _until := _now + coalesce(_lease_ms * interval '1 ms', make_interval(secs => _queue.lease_seconds));
    while _partitions > 0 and _batch > 0 loop
        _next := lockstep.find_claim(_next, _group_id, _partition_id, _partitions, '{}', _batch, _queue, _now);
        exit when _next.upto is null;
        _cursor := _next.at;
        return query select * from lockstep.popped_runs(
            _request, _cursor.partition_id, _cursor.attempts + 1, _cursor.acked, _next.upto, case when not _auto_ack then _until end, _lease_id);
        if _auto_ack then
            update lockstep.cursor c
            set acked = _next.upto, attempts = 0, consumed_at = _now, due_at = lockstep.due_or_drained(c.partition_id, _next.upto, _queue, _now, _now)
            where c.partition_id = _cursor.partition_id and c.group_id = _group_id;
            perform lockstep.count_moves(array[_group_id], array[_cursor.partition_id], array[_cursor.acked], array[_next.upto]);
        else
            update lockstep.cursor c set lease_id = _lease_id, lease_to = _next.upto, leased_at = _now, due_at = _until
            where c.partition_id = _cursor.partition_id and c.group_id = _group_id;
        end if;
        _partitions := _partitions - 1;
        _batch := _batch - lockstep.stored_between(_cursor.partition_id, _cursor.acked, _next.upto)::int;
        exit when _partition_id is not null;
    end loop;
    if _next.more or _next.passed <> '{}' then
        return next lockstep.more_is_due(_request, _queue.id);
    end if;
end $$;

-- Whether a queue has no option that concerns single messages or the order of partitions. Only then may pops use the
-- fast paths (claim_regular, shared_claim_joined, shared_claim_regular): a new option of that kind must be added here.
create or replace function lockstep.is_regular(_queue lockstep.queue) returns boolean language sql immutable parallel safe as $$
    select _queue.delay_seconds + _queue.window_seconds + _queue.max_wait_seconds + _queue.expire_seconds + _queue.partitions = 0 and not _queue.expiring
$$;

-- The runs of a partition with the messages in (_after, _upto], as every pop returns them. The planner inlines it.
create or replace function lockstep.popped_runs(
    _request int, _partition_id bigint, _attempt int, _after bigint, _upto bigint, _expires_at timestamptz, _lease_id uuid
) returns setof lockstep.popped language sql stable as $$
    select p.* from lockstep.popped_place(_request, _partition_id, _attempt, _after, _upto, _expires_at, _lease_id) p
    where p.segment_id is not null
    order by p.first_seq
$$;

-- The same, with one row if there are no such messages: only the request, the partition and the lease are known then. This is
-- the only place that fills the columns of lockstep.popped.
create or replace function lockstep.popped_place(
    _request int, _partition_id bigint, _attempt int, _after bigint, _upto bigint, _expires_at timestamptz, _lease_id uuid
) returns setof lockstep.popped language sql stable as $$
    select _request, p.queue_id, p.id, p.name, _attempt,
           case when r.segment_id is not null then greatest(r.first_seq, _after + 1) end, least(r.last_seq, _upto),
           r.segment_id, (r.ordinal + greatest(_after + 1 - r.first_seq, 0))::int, _expires_at, _lease_id
    from lockstep.partition p left join lateral lockstep.runs_between(p.id, _after, _upto) r on true
    where p.id = _partition_id
$$;

-- The row without a partition which says that more is due, behind messages that this transaction may not skip.
create or replace function lockstep.more_is_due(_request int, _queue_id int) returns lockstep.popped language plpgsql immutable parallel safe as $$
declare
    _more lockstep.popped;
begin
    _more.request := _request;
    _more.queue_id := _queue_id;
    return _more;
end $$;

-- Picks the next due cursor with claimable messages, locks it and puts it right: of one partition, or the group's first
-- by time or, in a balanced queue, the one with the most pending messages. At most _partitions are taken, including
-- those in _taken. _state is what the previous call returned, null at first: `passed` has the cursors that were left
-- because more expired there than this transaction may skip, `looks` how many more may be examined. Sets `at` and
-- `upto`, null if there is nothing to claim, and `more` if something may remain that this call did not examine.
create or replace function lockstep.find_claim(
    _state lockstep.next_claim, _group_id int, _partition_id bigint, _partitions int, _taken bigint[], _batch int, _queue lockstep.queue, _now timestamptz
) returns lockstep.next_claim language plpgsql as $$
declare
    _cursor lockstep.cursor;
    _passed bigint[] := coalesce(_state.passed, '{}');
    _looks int := coalesce(_state.looks, greatest(lockstep.passes_left(), 100));
    _upto bigint;
begin
    loop
        if _partition_id is null and _queue.partitions > 0 then
            select c.* into _cursor from lockstep.cursor c
            where c.group_id = _group_id and c.due_at <= _now and c.partition_id <> all (_passed)
              and (cardinality(_taken) < _partitions or c.partition_id = any (_taken))
            order by lockstep.lag(c.partition_id, c.acked) desc, c.partition_id limit 1 for no key update skip locked;
        elsif _partition_id is null then
            select c.* into _cursor from lockstep.cursor c
            where c.group_id = _group_id and c.due_at <= _now and c.partition_id <> all (_passed)
              and (cardinality(_taken) < _partitions or c.partition_id = any (_taken))
            order by c.due_at, c.partition_id limit 1 for no key update skip locked;
        else
            select c.* into _cursor from lockstep.cursor c
            where c.partition_id = _partition_id and c.group_id = _group_id and c.due_at <= _now and c.partition_id <> all (_passed)
              and (cardinality(_taken) < _partitions or c.partition_id = any (_taken)) for no key update skip locked;
        end if;
        if not found or _looks = 0 then
            return (null, null, _passed, _looks, found)::lockstep.next_claim;
        end if;
        _cursor := lockstep.put_right(_cursor, _queue, _now);
        if _cursor.due_at is null or _cursor.due_at > _now then
            _looks := _looks - 1;
            continue;
        end if;
        if lockstep.may_expire(_queue) and lockstep.passes_left() = 0
           and lockstep.is_head_expired(_cursor.partition_id, _cursor.acked, _queue, _now) then
            _passed := _passed || _cursor.partition_id;
            _looks := least(_looks, 100) - 1;
            continue;
        end if;
        -- Messages created after this pop began are eligible, unless the queue has a delay.
        _upto := lockstep.reach(_cursor.partition_id, _cursor.acked, _batch, case
            when _queue.delay_seconds > 0 then _now - make_interval(secs => _queue.delay_seconds) else 'infinity' end);
        if lockstep.may_expire(_queue) then
            _upto := lockstep.before_expired(_cursor.partition_id, _cursor.acked, _upto, _queue, _now);
        end if;
        return (_cursor, _upto, _passed, _looks, false)::lockstep.next_claim;
    end loop;
end $$;

-- The runs that cover the stored messages in (_after, _upto], in order. The order makes it a separate look-up, whatever
-- plan a join would get.
create or replace function lockstep.runs_between(_partition_id bigint, _after bigint, _upto bigint) returns setof lockstep.run language sql stable as $$
    select r.* from lockstep.run r
    where r.partition_id = _partition_id and r.first_seq <= _upto and r.last_seq > _after and r.segment_id is not null
      and r.first_seq >= coalesce(
          (select f.first_seq from lockstep.run f where f.partition_id = _partition_id and f.first_seq <= _after + 1 order by f.first_seq desc limit 1), 0)
    order by r.first_seq
$$;

-- The last seq of at most _batch stored messages after _acked, all created at or before _time; null if there is none.
create or replace function lockstep.reach(_partition_id bigint, _acked bigint, _batch int, _time timestamptz) returns bigint language sql stable as $$
    select max(case when t.before + t.n <= _batch then t.last_seq else t.first_seq + _batch - t.before - 1 end)
    from (
        select r.*, sum(r.n) over (order by r.first_seq) - r.n as before
        from (
            select greatest(r.first_seq, _acked + 1) as first_seq, r.last_seq, r.last_seq - greatest(r.first_seq, _acked + 1) + 1 as n
            from (
                select r.* from lockstep.run r
                where r.partition_id = _partition_id and r.last_seq > _acked and r.segment_id is not null
                  and r.first_seq >= coalesce(
                      (select f.first_seq from lockstep.run f where f.partition_id = _partition_id and f.first_seq <= _acked + 1 order by f.first_seq desc limit 1), 0)
                order by r.first_seq limit _batch
            ) r
            cross join lateral (select s.created_at from lockstep.segment s where s.id = r.segment_id limit 1) s
            where s.created_at <= _time
        ) r
    ) t
    where t.before < _batch
$$;

-- Puts a locked, due cursor right: passes removed messages, charges an expired lease (rules.expire), passes messages
-- that waited too long or expired; then recomputes when it is due. Returns the resulting cursor.
create or replace function lockstep.put_right(_cursor lockstep.cursor, _queue lockstep.queue, _now timestamptz) returns lockstep.cursor language plpgsql as $$
declare
    _before lockstep.cursor := _cursor;
    -- Read once: messages that appear between two reads must not be passed.
    _start bigint := coalesce(lockstep.next_seq(_cursor.partition_id, _cursor.acked) - 1, lockstep.last_seq(_cursor.partition_id));
    _head bigint := lockstep.next_seq(_cursor.partition_id, _start);
    _overdue bigint;
    _stopped boolean := false;
begin
    if _start > _cursor.acked then
        _cursor.acked := _start;
        _cursor.attempts := 0;
    end if;
    if _cursor.lease_id is not null and _head <= _cursor.lease_to then
        _cursor.attempts := lockstep.charged(_cursor.attempts);
        _stopped := lockstep.exhausted(_cursor.attempts, _queue) and _queue.on_exhausted = 'stop';
        if lockstep.exhausted(_cursor.attempts, _queue) and not _stopped then
            if _queue.on_exhausted = 'dead' then
                insert into lockstep.dead_letter (queue_id, partition_id, seq, group_name, attempts, error, failed_at)
                select _queue.id, _cursor.partition_id, _head, g.name, _cursor.attempts, 'lease expired', _now
                from lockstep.consumer_group g where g.id = _cursor.group_id;
            end if;
            _cursor.acked := _head;
            _cursor.attempts := 0;
        end if;
    end if;
    if _queue.max_wait_seconds > 0 and not _stopped then
        _overdue := lockstep.waited_upto(_cursor.partition_id, _cursor.acked, _now - make_interval(secs => _queue.max_wait_seconds));
        if _overdue > _cursor.acked then
            _cursor.acked := _overdue;
            _cursor.attempts := 0;
        end if;
    end if;
    if lockstep.may_expire(_queue) and not _stopped then
        _overdue := lockstep.pass_expired(_cursor.partition_id, _cursor.group_id, _cursor.acked, _cursor.attempts, _queue, _now);
        if _overdue > _cursor.acked then
            _cursor.acked := _overdue;
            _cursor.attempts := 0;
        end if;
    end if;
    _cursor.lease_id := null;
    _cursor.lease_to := null;
    _cursor.leased_at := null;
    _cursor.consumed_at := case when _cursor.acked > _before.acked then _now else _before.consumed_at end;
    _cursor.due_at := case
        when _stopped then 'infinity' else lockstep.due_or_drained(_cursor.partition_id, _cursor.acked, _queue, _cursor.due_at, _now) end;
    if _cursor is distinct from _before then
        update lockstep.cursor c
        set acked = _cursor.acked, attempts = _cursor.attempts, lease_id = null, lease_to = null, leased_at = null,
            consumed_at = _cursor.consumed_at, due_at = _cursor.due_at
        where c.partition_id = _cursor.partition_id and c.group_id = _cursor.group_id;
        perform lockstep.count_moves(array[_cursor.group_id], array[_cursor.partition_id], array[_before.acked], array[_cursor.acked]);
    end if;
    return _cursor;
end $$;

-- When a locked cursor without a lease is due. Whether it is drained is known only under the partition lock, which is
-- against the lock order here and therefore only tried; if a push holds it, messages are coming, and the next pop
-- checks.
create or replace function lockstep.due_or_drained(_partition_id bigint, _acked bigint, _queue lockstep.queue, _not_before timestamptz, _now timestamptz)
returns timestamptz language plpgsql as $$
declare
    _due_at timestamptz := lockstep.due_at(_partition_id, _acked, _queue.delay_seconds, _queue.window_seconds, _not_before);
begin
    if _due_at is not null then
        return _due_at;
    end if;
    perform 1 from lockstep.partition p where p.id = _partition_id for no key update skip locked;
    if not found then
        return _now + interval '10 ms';
    end if;
    return lockstep.due_at(_partition_id, _acked, _queue.delay_seconds, _queue.window_seconds, _not_before);
end $$;

-- In how many seconds a pop may find something, by group and, if not null, partition: 0 is now; null if nothing is due
-- within that time. 0 for a group or partition that is gone: its next pop looks up the names again. The index range
-- ends at _within seconds: beyond lie index entries of acknowledged leases, and if a long transaction keeps them,
-- reading them all would make an idle query cost as much as the busy hour before.
create or replace function lockstep.due_in(_group_ids int[], _partition_ids bigint[], _within float8, _at timestamptz)
returns float8[] language plpgsql stable as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _until timestamptz := _now + make_interval(secs => _within);
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.need_groups('{pop}', _group_ids, _partition_ids); end if;
    return (
        select array_agg(lockstep.seconds_until(
            case when not exists (select 1 from lockstep.consumer_group g where g.id = t.group_id)
                   or (t.partition_id is not null and not exists (select 1 from lockstep.partition p where p.id = t.partition_id))
                 then _now
                 when t.partition_id is null then lockstep.group_due(t.group_id, _until)
                 when lockstep.is_paused(t.group_id) then null
                 else least(
                     -- Without a condition on the time, which would let the planner use the index of everything due for
                     -- the group.
                     (select case when c.due_at <= _until then c.due_at end from lockstep.cursor c
                      where c.partition_id = t.partition_id and c.group_id = t.group_id),
                     (select d.due_at from lockstep.delivery d
                      where d.group_id = t.group_id and d.due_at <= _until and d.partition_id = t.partition_id
                      order by d.due_at limit 1),
                     (select _now from lockstep.consumer_group g
                      where g.id = t.group_id and g.placed_upto is not null
                        and not exists (select 1 from lockstep.cursor c where c.partition_id = t.partition_id and c.group_id = g.id)))
            end, _now) order by t.o)
        from unnest(_group_ids, _partition_ids) with ordinality t (group_id, partition_id, o)
    );
end $$;

-- Whether an operator has paused the group, so that nothing is delivered to it.
create or replace function lockstep.is_paused(_group_id int) returns boolean language sql stable as $$
    select g.paused_at is not null from lockstep.consumer_group g where g.id = _group_id
$$;

-- The result is 0 for a time in the past, and null for null, which greatest() alone would turn into 0.
create or replace function lockstep.seconds_until(_due_at timestamptz, _now timestamptz) returns float8 language sql immutable as $$
    select case when _due_at is not null then greatest(extract(epoch from _due_at - _now), 0)::float8 end
$$;

-- When a group next has a message, new or redelivered, if not after a given time. A cursor that does not exist yet may
-- have messages. A paused group has none.
create or replace function lockstep.group_due(_group_id int, _until timestamptz) returns timestamptz language plpgsql stable as $$
begin
    if lockstep.is_paused(_group_id) then
        return null;
    end if;
    return least(
        (select c.due_at from lockstep.cursor c where c.group_id = _group_id and c.due_at <= _until order by c.due_at limit 1),
        (select d.due_at from lockstep.delivery d where d.group_id = _group_id and d.due_at <= _until order by d.due_at limit 1),
        (select timestamptz 'epoch' from lockstep.consumer_group g where g.id = _group_id and g.placed_upto is not null)
    );
end $$;

-- The same for a group on all queues of a namespace and/or task: now, if the group does not exist yet on one of them.
create or replace function lockstep.due_in_labels(_namespaces text[], _tasks text[], _groups text[], _within float8, _at timestamptz)
returns float8[] language plpgsql stable as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.need_names('{pop}', '{*}'); end if;
    return (
        select array_agg(lockstep.seconds_until((
            select min(case when g.id is null then _now else lockstep.group_due(g.id, _now + make_interval(secs => _within)) end)
            from (
                select q.id from lockstep.queue q
                where (t.namespace is null or q.namespace = t.namespace) and (t.task is null or q.task = t.task)
                offset 0
            ) q
            left join lateral (
                select g.id from lockstep.consumer_group g where g.queue_id = q.id and g.name = t.group_name limit 1
            ) g on true
        ), _now) order by t.o)
        from unnest(_namespaces, _tasks, _groups) with ordinality t (namespace, task, group_name, o)
    );
end $$;
