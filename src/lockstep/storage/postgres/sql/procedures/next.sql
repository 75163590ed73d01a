-- Next: completes leases and leases the messages that follow, with one update of each cursor if the same partition
-- continues. core/rules.py (is_kept, share) defines which partitions continue; everything else is as in ack.sql and
-- pop.sql.
--
-- Guarantees: those of an ack of whole leases, and of a pop that begins with their partitions. A stale lease changes
-- nothing, and nothing is leased in return. The new lease has another id, so that a repeated call finds its lease gone.
-- Locks: partition rows (by id), then cursor rows (by partition and group), as an ack does. The partition row is needed
-- only where the cursor would be left drained: it is locked first, and the statement that ends the lease checks again.
-- Claims beyond the partitions of the lease lock as in pop.sql, with SKIP LOCKED.
-- Indexes: cursor_lease, cursor_pkey, run_pkey; those of pop.sql.

-- The i-th request, counted from 1, ends the lease _held_ids[i]; _kept_claims[i] is the claim whose partitions
-- continue, null if none do. Claims are those of lockstep.pop, whose requests count from 0; _shared says which are of
-- shared groups. A row gives the result for a partition of a lease (`messages`, `expired`, and whether it has `more`),
-- or a newly leased run (from `first_seq` on), or both; a row without a partition says that more is due (pop.sql).
create or replace function lockstep.next(
    _held_ids uuid[], _kept_claims int[], _give_ways boolean[], _hold_ms bigint, _requests int[], _group_ids int[], _partition_ids bigint[],
    _partition_limits int[], _batches int[], _lease_ms bigint[], _lease_ids uuid[], _shared boolean[], _at timestamptz
) returns setof lockstep.continued language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    -- By request: how many messages it may still lease, and how many partitions of its lease have not ended; null if
    -- the lease is lost.
    _messages_left int[] := array_fill(0, array[cardinality(_held_ids)]);
    _partitions_left int[] := _messages_left;
    _not_ended int[] := array_fill(null::int, array[cardinality(_held_ids)]);
    -- By partition of a lease: the end of the old lease and of the new one.
    _of int[] := '{}';
    _partitions bigint[] := '{}';
    _groups int[] := '{}';
    _held_to bigint[] := '{}';
    _next_to bigint[] := '{}';
    _until timestamptz[] := '{}';
    _since timestamptz[] := '{}';
    _leaves boolean[] := '{}';
    _delays int[] := '{}';
    _windows int[] := '{}';
    _queue_names text[] := '{}';
    _acked bigint[];
    _more boolean[];
    _held record;
    _claim int;
    _kept_left int;
    _drained bigint[] := '{}';
    _one_by_one int[] := '{}';
    _ended int[];
    _from bigint[];
    _due boolean[];
    _in_flight uuid[];
    _run lockstep.popped;
    _last bigint;
    _began timestamptz;
    _i int;
begin
    if not lockstep.is_trusted() then
        perform lockstep.check_times(array[_at]), lockstep.check_spans(_lease_ms);
        perform lockstep.need_leases('{pop}', _held_ids);
        perform lockstep.need_groups('{pop}', _group_ids, _partition_ids);
    end if;
    for _i in 1 .. cardinality(_requests) loop
        _messages_left[_requests[_i] + 1] := _batches[_i];
        _partitions_left[_requests[_i] + 1] := _partition_limits[_i];
    end loop;
    for _held in
        select h.* from lockstep.held_by_leases(_held_ids, _kept_claims, _hold_ms, _group_ids, _partition_ids, _partition_limits, _now) h
        order by h.request, h.partition_id, h.group_id
    loop
        _claim := _kept_claims[_held.request];
        _not_ended[_held.request] := coalesce(_not_ended[_held.request], 0) + 1;
        _of := _of || _held.request;
        _partitions := _partitions || _held.partition_id;
        _groups := _groups || _held.group_id;
        _held_to := _held_to || _held.lease_to;
        _since := _since || _held.leased_at;
        _leaves := _leaves || (_give_ways[_held.request] and not _held.lasting);
        _delays := _delays || _held.delay_seconds;
        _windows := _windows || _held.window_seconds;
        _queue_names := _queue_names || _held.queue_name;
        if _held.is_kept and _held.is_regular then
            _kept_left := _held.kept_left;
            _next_to := _next_to || _held.lease_to + least(  -- rules.share
                _held.stored_to - _held.lease_to, (_messages_left[_held.request] + _kept_left - 1) / _kept_left);
            _until := _until || _now + coalesce(_lease_ms[_claim] * interval '1 ms', make_interval(secs => _held.lease_seconds));
            _messages_left[_held.request] := _messages_left[_held.request] - (_next_to[cardinality(_next_to)] - _held.lease_to)::int;
            _partitions_left[_held.request] := _partitions_left[_held.request] - 1;
            continue;
        end if;
        _next_to := _next_to || null::bigint;
        _until := _until || null::timestamptz;
        if _held.is_kept then
            _one_by_one := _one_by_one || cardinality(_partitions);
        elsif _held.due_at is null then
            _drained := _drained || _held.partition_id;
        end if;
    end loop;
    if _drained <> '{}' then
        perform 1 from lockstep.partition p where p.id = any (_drained) order by p.id for no key update;
        if _at is null then
            -- Leases begin once the locks are held: a lease could have ended before that.
            _began := _now;
            _now := clock_timestamp();
            _until := array(select t.until + (_now - _began) from unnest(_until) with ordinality t (until, o) order by o);
        end if;
    end if;
    if _partitions <> '{}' then
        with given as (
            -- The limit makes the plan look up a cursor by both columns: the planner may believe that a group has few
            -- cursors.
            select t.* from unnest(_of, _partitions, _groups, _held_to, _next_to, _until, _leaves, _delays, _windows)
                with ordinality t (request, partition_id, group_id, held_to, next_to, until, leaves, delay_seconds, window_seconds, o)
            limit cardinality(_partitions)
        ), held as materialized (
            select t.*, c.acked from given t
            join lockstep.cursor c on c.partition_id = t.partition_id and c.group_id = t.group_id
            where c.lease_id = _held_ids[t.request] and c.lease_to = t.held_to and c.due_at > _now
            order by c.partition_id, c.group_id for no key update of c
        ), moved as (
            update lockstep.cursor c
            set acked = h.held_to, attempts = 0, consumed_at = _now, lease_to = h.next_to,
                lease_id = case when h.next_to is not null then _lease_ids[_kept_claims[h.request]] end,
                leased_at = case when h.next_to is not null then c.leased_at end,
                due_at = case when h.next_to is not null then h.until else lockstep.due_after_lease(
                    h.partition_id, h.held_to, h.delay_seconds, h.window_seconds, h.partition_id = any (_drained), h.leaves, _now) end
            from held h where c.partition_id = h.partition_id and c.group_id = h.group_id
            returning h.o, h.acked, c.due_at
        )
        select array_agg(m.o), array_agg(m.acked), array_agg(m.due_at is not null) into _ended, _from, _due from moved m;
    end if;
    _acked := array_fill(null::bigint, array[cardinality(_partitions)]);
    _more := array_fill(false, array[cardinality(_partitions)]);
    for _i in 1 .. coalesce(cardinality(_ended), 0) loop
        _acked[_ended[_i]] := _from[_i];
        _more[_ended[_i]] := _due[_i];
        _not_ended[_of[_ended[_i]]] := _not_ended[_of[_ended[_i]]] - 1;
    end loop;
    return query
    select t.queue_name, coalesce(t.held_to - t.acked, 0), t.acked is null, t.more, r.*
    from unnest(_of, _partitions, _held_to, _next_to, _until, _queue_names, _acked, _more)
        with ordinality t (request, partition_id, held_to, next_to, until, queue_name, acked, more, o)
    cross join lateral lockstep.popped_place(
        t.request - 1, t.partition_id, 1, t.held_to, case when t.acked is not null then t.next_to end,
        case when t.acked is not null then t.until end, _lease_ids[_kept_claims[t.request]]) r
    order by t.o, r.first_seq;
    _from := array(select coalesce(a, h) from unnest(_acked, _held_to) with ordinality t (a, h, o) order by o);
    -- Leases that no cursor knows belong to shared groups, or to nobody.
    _in_flight := array(select h.id from unnest(_held_ids, _not_ended) h (id, n) where h.n is null);
    if _in_flight <> '{}' then
        for _held in select c.* from lockstep.shared_complete(_in_flight, _now, _groups, _partitions, _from, _held_to) c loop
            _i := array_position(_held_ids, _held.lease_id);
            _not_ended[_i] := coalesce(_not_ended[_i], 0) + _held.expired::int;
            _run := null;
            _run.request := _i - 1;
            _run.partition_id := _held.partition_id;
            _run.partition_name := _held.partition_name;
            return query select _held.queue_name, _held.messages, _held.expired, false, _run.*;
        end loop;
    elsif exists (  -- a later statement (depth.sql)
        select 1 from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id where g.id = any (_groups) and q.max_size > 0
    ) then
        perform lockstep.count_moves(_groups, _partitions, _from, _held_to);
    end if;
    foreach _i in array _one_by_one loop
        continue when _not_ended[_of[_i]] <> 0;
        _claim := _kept_claims[_of[_i]];
        _kept_left := (select count(*) from unnest(_one_by_one) k where k >= _i and _of[k] = _of[_i]);
        _last := null;
        for _run in
            select c.* from lockstep.claim(
                _requests[_claim], _groups[_i], _partitions[_i], 1, (_messages_left[_of[_i]] + _kept_left - 1) / _kept_left, _lease_ms[_claim],
                _lease_ids[_claim], false, _now) c
        loop
            return query select null::text, null::bigint, null::boolean, null::boolean, _run.*;
            continue when _run.partition_id is null;
            _messages_left[_of[_i]] := _messages_left[_of[_i]] - (_run.last_seq - _run.first_seq + 1)::int;
            _last := _run.partition_id;
        end loop;
        continue when _last is null;
        _partitions_left[_of[_i]] := _partitions_left[_of[_i]] - 1;
        update lockstep.cursor c set leased_at = _since[_i]
        where c.partition_id = _partitions[_i] and c.group_id = _groups[_i] and c.lease_id = _lease_ids[_claim];
    end loop;
    return query
    select null::text, null::bigint, null::boolean, null::boolean, c.*
    from lockstep.claim_others(
        _requests, _group_ids, _partition_ids, _partitions_left, _messages_left, _lease_ms, _lease_ids, _shared, _not_ended, _now, _at) c;
end $$;

-- The partitions of the leases: numbered by request. `due_at` is when more is due, `place` counts the partitions that
-- may be kept; a kept partition that is not regular is put right before it is claimed. A lease that is not live as a
-- whole keeps nothing.
create or replace function lockstep.held_by_leases(
    _held_ids uuid[], _kept_claims int[], _hold_ms bigint, _group_ids int[], _partition_ids bigint[], _partition_limits int[], _now timestamptz
) returns table (
    request int, partition_id bigint, group_id int, lease_to bigint, leased_at timestamptz, lasting boolean, stored_to bigint, due_at timestamptz,
    is_kept boolean, is_regular boolean, kept_left int, lease_seconds int, delay_seconds int, window_seconds int, queue_name text
) language sql stable as $$
    select k.request, k.partition_id, k.group_id, k.lease_to, k.leased_at, k.lasting, k.stored_to, k.due_at, k.may_keep and k.live and k.place <= k.most,
           k.regular, least(k.places, k.most)::int - k.place::int + 1, k.lease_seconds, k.delay_seconds, k.window_seconds, k.queue_name
    from (
        select f.*, _partition_limits[_kept_claims[f.request]] as most,
               bool_and(f.is_live) over (partition by f.request) as live,
               bool_and(f.regular_alone or not f.may_keep) over (partition by f.request) as regular,
               count(*) filter (where f.may_keep) over (partition by f.request) as places,
               count(*) filter (where f.may_keep) over (partition by f.request order by f.partition_id) as place
        from (
            select d.*, d.in_scope and d.lasting and d.due_at <= _now as may_keep
            from (
                select t.o::int as request, c.partition_id, c.group_id, c.lease_to, c.leased_at, c.due_at > _now as is_live,
                       c.leased_at <= _now and c.leased_at > _now - _hold_ms * interval '1 ms' as lasting,
                       coalesce(
                           q.partitions = 0 and not q.paused and c.group_id = _group_ids[_kept_claims[t.o]]
                           and coalesce(_partition_ids[_kept_claims[t.o]], c.partition_id) = c.partition_id, false) as in_scope,
                       q.is_regular and not exists (
                           select 1 from lockstep.run r
                           where r.partition_id = c.partition_id and r.segment_id is null and r.last_seq > c.lease_to) as regular_alone,
                       l.last_seq as stored_to,
                       case when coalesce(l.last_seq, 0) <= c.lease_to then null
                            when q.delay_seconds = 0 and q.window_seconds = 0 then _now
                            else lockstep.due_at(c.partition_id, c.lease_to, q.delay_seconds, q.window_seconds, _now) end as due_at,
                       q.lease_seconds, q.delay_seconds, q.window_seconds, q.name as queue_name
                from unnest(_held_ids) with ordinality t (lease_id, o)
                cross join lateral (select c.* from lockstep.cursor c where c.lease_id = t.lease_id offset 0) c
                cross join lateral (
                    select q.*, lockstep.is_regular(q) as is_regular, g.paused_at is not null as paused from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id
                    where g.id = c.group_id offset 0
                ) q
                left join lateral (
                    select r.last_seq from lockstep.run r
                    where r.partition_id = c.partition_id and r.segment_id is not null order by r.first_seq desc limit 1
                ) l on true
            ) d
        ) f
    ) k
$$;

-- When a cursor is due whose lease ended with everything completed; null if it is drained, which is reliable only if
-- the partition is locked. A cursor left to other consumers is not due for the remaining claims of this call
-- (rules.give_way).
create or replace function lockstep.due_after_lease(
    _partition_id bigint, _acked bigint, _delay_seconds int, _window_seconds int, _locked boolean, _leaves boolean, _now timestamptz
) returns timestamptz language plpgsql stable as $$
declare
    _due_at timestamptz := lockstep.due_at(_partition_id, _acked, _delay_seconds, _window_seconds, _now);
begin
    if _due_at is null and not _locked then
        _due_at := _now;
    end if;
    return case when _leaves and _due_at <= _now then _now + interval '1 microsecond' else _due_at end;
end $$;

-- Pops for the requests that may lease more and whose leases have ended completely. Pops of shared groups check again
-- for messages given back in the meantime, with a fresh time.
create or replace function lockstep.claim_others(
    _requests int[], _group_ids int[], _partition_ids bigint[], _partitions_left int[], _messages_left int[], _lease_ms bigint[], _lease_ids uuid[],
    _shared boolean[], _not_ended int[], _now timestamptz, _at timestamptz
) returns setof lockstep.popped language plpgsql as $$
declare
    _claims record;
begin
    for _claims in
        select t.of_shared, array_agg(t.request order by t.i) as requests, array_agg(t.group_id order by t.i) as group_ids,
               array_agg(t.partition_id order by t.i) as partition_ids, array_agg(_partitions_left[t.request + 1] order by t.i) as partitions,
               array_agg(_messages_left[t.request + 1] order by t.i) as batches, array_agg(t.lease_ms order by t.i) as lease_ms,
               array_agg(t.lease_id order by t.i) as lease_ids, array_agg(false) as auto_acks
        from unnest(_requests, _group_ids, _partition_ids, _lease_ms, _lease_ids, _shared)
            with ordinality t (request, group_id, partition_id, lease_ms, lease_id, of_shared, i)
        where _not_ended[t.request + 1] = 0 and _messages_left[t.request + 1] > 0 and _partitions_left[t.request + 1] > 0
        group by t.of_shared
    loop
        if _claims.of_shared then
            return query select c.* from lockstep.shared_pop(
                _claims.requests, _claims.group_ids, _claims.partition_ids, _claims.partitions, _claims.batches, _claims.lease_ms,
                _claims.lease_ids, _claims.auto_acks, _at) c;
        else
            return query select c.* from lockstep.pop(
                _claims.requests, _claims.group_ids, _claims.partition_ids, _claims.partitions, _claims.batches, _claims.lease_ms,
                _claims.lease_ids, _claims.auto_acks, _now) c;
        end if;
    end loop;
end $$;
