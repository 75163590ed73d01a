-- Operations: requests that wait, in bundles, until a processor applies them.
--
-- Guarantees: a bundle is applied after all older bundles that share a lane with it, and is marked in the transaction
-- that applies it. A claim is the lock on its row, so it ends with the transaction, whatever happens to the process.
-- Serials rise in the order in which inserts began. A producer that sends one bundle after another was confirmed gets
-- them in that order; of overlapping inserts none was confirmed, and either may come first.
-- Locks: operation rows come before queue rows, partition rows and all that follow. A row of operation_sum comes last.
-- Indexes: operation_pending, operation_lane_pkey, operation_uuid, partition_pkey.

-- Adds to the sums of a kind. Each session has its own row, or shares it with a few others.
create or replace function lockstep.count_operations(_kind text, _operations bigint, _messages bigint, _bytes bigint, _failed bigint)
returns void language sql as $$
    insert into lockstep.operation_sum as s (kind, slot, operations, messages, bytes, failed)
    values (_kind, pg_backend_pid() % 16, _operations, _messages, _bytes, _failed)
    on conflict (kind, slot) do update set
        operations = s.operations + excluded.operations, messages = s.messages + excluded.messages,
        bytes = s.bytes + excluded.bytes, failed = s.failed + excluded.failed
$$;

-- Queues the requests of one body. Raises LS001 if a partition is gone; then the names must be resolved again.
create or replace function lockstep.queue_operations(
    _kind text, _priority smallint, _requests int, _messages int, _bytes bigint, _partition_ids bigint[], _codec smallint, _body bytea,
    _queues text[], _aims bytea, _at timestamptz, out _uuid uuid
) language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _serial bigint;
begin
    if _kind = 'push' and cardinality(_partition_ids) <> (
        select count(*) from unnest(_partition_ids) t (id)
        cross join lateral (select 1 from lockstep.partition p join lockstep.queue q on q.id = p.queue_id where p.id = t.id limit 1) p
    ) then
        raise exception 'a partition is gone' using errcode = 'LS001';
    end if;
    insert into lockstep.operation (
        uuid, kind, priority, request_count, message_count, bytes, partition_ids, codec, requests, queues, aims, created_at, due_at
    )
    values (
        lockstep.segment_uuid(), _kind, _priority, _requests, _messages, _bytes, _partition_ids, _codec, _body, _queues, _aims, _now, _now
    )
    returning serial, uuid into _serial, _uuid;
    insert into lockstep.operation_lane (partition_id, serial) select t.id, _serial from unnest(_partition_ids) t (id);
    perform lockstep.count_operations(_kind, _requests, _messages, _bytes, 0);
end $$;

-- Claims bundles of a kind that may be applied now, oldest first: up to the limits of messages and bytes, and at least
-- one. They are locked and removed from their lanes. A bundle may be applied if, in each of its lanes, its predecessor
-- is claimed here, too: then everything before it is. A bundle at the head of all its lanes stays there, so this is
-- checked before it is locked. A bundle that is retried is the only one claimed from its lanes: those behind it would
-- most likely fail with it. Bundles behind one that is not due, or is retried, sleep: for half as long as they have
-- waited, at most 10 s, or until finish_operations wakes them. A locked partition therefore costs one bundle per
-- attempt, however many wait for it. If a bundle waits in several lanes, the first one determines how long it sleeps;
-- the others are not examined. A claim skips at most 5,000 bundles. Sleeping bundles are read but not examined. If the
-- process hangs for _timeout_ms, the transaction ends, and with it the claim.
create or replace function lockstep.claim_operations(
    _kind text, _messages_max int, _bytes_max bigint, _timeout_ms int, _at timestamptz
)
returns table (
    serial bigint, uuid uuid, request_count int, codec smallint, requests bytea, results bytea, retries int, partition_ids bigint[]
) language plpgsql as $$
#variable_conflict use_column
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _taken bigint[] := '{}';
    _followed bigint[] := '{}';  -- those of them that others may follow
    _passed int := 0;
    _messages bigint := 0;
    _bytes bigint := 0;
    _one record;
    _before bigint;
begin
    perform set_config('idle_in_transaction_session_timeout', _timeout_ms::text, true);
    for _one in
        select o.serial, o.message_count, o.bytes, o.partition_ids, o.error is not null as again from lockstep.operation o
        where o.pending and o.kind = _kind and o.due_at <= _now order by o.priority, o.serial
    loop
        exit when _taken <> '{}' and (_messages + _one.message_count > _messages_max or _bytes + _one.bytes > _bytes_max);
        exit when _passed >= 5000;
        select l.serial into _before from unnest(_one.partition_ids) t (id)
        cross join lateral (
            select l.serial from lockstep.operation_lane l
            where l.partition_id = t.id and l.serial < _one.serial order by l.serial desc limit 1
        ) l where l.serial <> all (_followed) limit 1;
        if found then
            _passed := _passed + 1;
            update lockstep.operation o
            set due_at = greatest(b.due_at, _now + least((_now - o.created_at) / 2, interval '10 s'))
            from lockstep.operation b
            where b.serial = _before and (b.due_at > _now or b.error is not null) and o.serial = (
                select s.serial from lockstep.operation s where s.serial = _one.serial and s.pending for update skip locked
            );
            continue;
        end if;
        perform 1 from lockstep.operation o where o.serial = _one.serial and o.pending for update skip locked;
        continue when not found;
        _taken := _taken || _one.serial;
        if not _one.again then
            _followed := _followed || _one.serial;
        end if;
        _messages := _messages + _one.message_count;
        _bytes := _bytes + _one.bytes;
    end loop;
    delete from lockstep.operation_lane l using (
        select o.serial, unnest(o.partition_ids) as partition_id from lockstep.operation o where o.serial = any (_taken)
    ) t where l.partition_id = t.partition_id and l.serial = t.serial;
    return query
    select o.serial, o.uuid, o.request_count, o.codec, o.requests, o.results, o.retries, o.partition_ids
    from unnest(_taken) with ordinality t (serial, o)
    cross join lateral (select o.* from lockstep.operation o where o.serial = t.serial limit 1) o
    order by t.o;
end $$;

-- Wakes sleeping bundles in lanes that the claimed bundles leave, some in each lane: the rest is woken when those have
-- ended. Does not wait for bundles claimed by another processor; they wake by themselves at most 10 s later.
create or replace function lockstep.wake_operations(_serials bigint[], _lanes_left bigint[], _now timestamptz) returns void language sql as $$
    update lockstep.operation o set due_at = least(o.due_at, _now), error = null where o.serial = any (array(
        select w.serial from (
            select distinct b.serial from (
                select unnest(o.partition_ids) as id from lockstep.operation o where o.serial = any (_serials)
                except select unnest(_lanes_left)
            ) t
            cross join lateral (
                select l.serial from lockstep.operation_lane l where l.partition_id = t.id order by l.serial limit 1
            ) first
            cross join lateral (
                select 1 from lockstep.operation f where f.serial = first.serial and (f.due_at > _now or f.error is not null) limit 1
            ) sleeps
            cross join lateral (
                select l.serial from lockstep.operation_lane l where l.partition_id = t.id order by l.serial limit 1000
            ) b
        ) t
        cross join lateral (
            select o.serial from lockstep.operation o
            where o.serial = t.serial and o.pending and (o.due_at > _now or o.error is not null) for update skip locked
        ) w
    ));
$$;

-- Records the results of claimed bundles, which are of one kind. A bundle with requests left (_wait_seconds is not
-- null) waits for that long, in the lanes _lanes[_first_lanes[i]:_last_lanes[i]] of those requests; sleeping bundles in
-- its other lanes are woken.
create or replace function lockstep.finish_operations(
    _serials bigint[], _results bytea[], _failed int[], _retries int[], _errors text[], _wait_seconds double precision[],
    _lanes bigint[], _first_lanes int[], _last_lanes int[], _worker text, _at timestamptz
) returns void language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _change record;
begin
    perform lockstep.wake_operations(_serials, _lanes, _now);
    select b.kind, -coalesce(sum(b.request_count) filter (where t.wait_seconds is null), 0) as operations,
           -coalesce(sum(b.message_count) filter (where t.wait_seconds is null), 0) as messages,
           -coalesce(sum(b.bytes) filter (where t.wait_seconds is null), 0) as bytes, sum(t.failed - b.failed_count) as failed
    into _change
    from unnest(_serials, _failed, _wait_seconds) t (serial, failed, wait_seconds)
    cross join lateral (select o.* from lockstep.operation o where o.serial = t.serial limit 1) b
    group by b.kind;
    update lockstep.operation o set
        results = t.results, failed_count = t.failed, retries = t.retries, error = t.error, worker = _worker,
        pending = t.wait_seconds is not null,
        due_at = coalesce(_now + make_interval(secs => t.wait_seconds), o.due_at),
        completed_at = case when t.wait_seconds is null then _now end,
        requests = case when t.wait_seconds is not null or t.failed > 0 then o.requests end,
        partition_ids = case when t.wait_seconds is null then o.partition_ids else _lanes[t.first_lane:t.last_lane] end
    from unnest(_serials, _results, _failed, _retries, _errors, _wait_seconds, _first_lanes, _last_lanes)
        t (serial, results, failed, retries, error, wait_seconds, first_lane, last_lane)
    where o.serial = t.serial;
    insert into lockstep.operation_lane (partition_id, serial)
    select l.id, t.serial from unnest(_serials, _wait_seconds, _first_lanes, _last_lanes) t (serial, wait_seconds, first_lane, last_lane)
    cross join lateral unnest(_lanes[t.first_lane:t.last_lane]) l (id)
    where t.wait_seconds is not null;
    perform lockstep.count_operations(
        _change.kind, _change.operations::bigint, _change.messages::bigint, _change.bytes::bigint, _change.failed::bigint);
end $$;

-- Makes a failed request wait again, in its old position. The caller has removed it from the results.
create or replace function lockstep.retry_operation(_serial bigint, _results bytea, _lanes bigint[], _at timestamptz) returns void language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _was lockstep.operation;
begin
    select o.* into _was from lockstep.operation o where o.serial = _serial;
    update lockstep.operation o set
        pending = true, completed_at = null, results = _results, failed_count = o.failed_count - 1, retries = 0, due_at = _now,
        partition_ids = array(select unnest(_lanes) union select unnest(o.partition_ids) where _was.pending order by 1)
    where o.serial = _serial;
    insert into lockstep.operation_lane (partition_id, serial) select t.id, _serial from unnest(_lanes) t (id) on conflict do nothing;
    if _was.pending then
        perform lockstep.count_operations(_was.kind, 0, 0, 0, -1);
    else
        perform lockstep.count_operations(_was.kind, _was.request_count, _was.message_count, _was.bytes, -1);
    end if;
end $$;

-- Removes bundles that ended the given number of seconds ago; bundles with a failure stay longer.
create or replace function lockstep.prune_operations(
    _seconds double precision, _failed_seconds double precision, _limit int, _at timestamptz
) returns int language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _removed int := 0;
    _change record;
begin
    for _change in
        with removed as (
            delete from lockstep.operation o where o.serial = any (array(
                select p.serial from lockstep.operation p
                where not p.pending and p.completed_at <= _now - make_interval(secs => _seconds)
                  and (p.failed_count = 0 or p.completed_at <= _now - make_interval(secs => _failed_seconds))
                order by p.completed_at limit _limit for update skip locked
            )) returning o.kind, o.failed_count
        )
        select r.kind, count(*) as bundles, sum(r.failed_count)::bigint as failed from removed r group by r.kind order by r.kind
    loop
        _removed := _removed + _change.bundles;
        if _change.failed > 0 then
            perform lockstep.count_operations(_change.kind, 0, 0, 0, -_change.failed);
        end if;
    end loop;
    return _removed;
end $$;
