-- Names to ids, creating what is missing.

-- Creates the queue (with default options) and those of its partitions that are missing; returns the ids in the order
-- of _partitions. Locks the queue row in share mode, so that a group being created either sees the new partitions or is
-- seen by them: every partition has a cursor for every group. A lateral subquery with a LIMIT, here and elsewhere,
-- forces a look-up per row instead of a join: plans outlive the statistics that they were made with, and for an empty
-- table both look equally cheap.
-- With _most, the queue gets at most that many partitions: raises SQLSTATE LS010 if there would be more. The caller
-- passes _counted, the number of partitions up to the id _upto, from one call to the next, so that each is counted once.
create or replace function lockstep.resolve(
    _queue text, _partitions text[], _at timestamptz default null,
    _most bigint default null, _counted bigint default null, _upto bigint default null
) returns table (
    queue_id int, compression text, encryption boolean, limited boolean, partition_ids bigint[], counted bigint, upto bigint
) language plpgsql as $$
#variable_conflict use_column
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _queue_id int;
    _missing text[];
begin
    -- configure() calls this as well.
    if not lockstep.is_trusted() then
        perform lockstep.check_times(array[_at]), lockstep.check_name('queue', _queue);
        perform lockstep.check_name('partition', t.name) from unnest(_partitions) t (name);
    end if;
    if not lockstep.is_trusted() and not lockstep.may_push(_queue) then perform lockstep.need_names('{push,manage}', array[_queue]); end if;
    if not exists (select 1 from lockstep.queue q where q.name = _queue) then
        perform lockstep.create_queue(_queue, null, null, _now);
    end if;
    -- A push to a queue with a max_size needs the stronger lock later; two transactions with the weaker one would
    -- deadlock.
    if exists (select 1 from lockstep.queue q where q.name = _queue and q.max_size > 0) then
        select q.id into _queue_id from lockstep.queue q where q.name = _queue for no key update;
    else
        select q.id into _queue_id from lockstep.queue q where q.name = _queue for share;
    end if;
    if not found then
        raise exception 'the queue is being deleted' using errcode = 'LS001';
    end if;
    _missing := array(
        select t.name from (select distinct unnest(_partitions) as name) t
        left join lateral (select p.id from lockstep.partition p where p.queue_id = _queue_id and p.name = t.name limit 1) p on true
        where p.id is null
        order by t.name
    );
    if _missing <> '{}' then
        if _most is not null then
            select r.* into _counted, _upto from lockstep.room_for_partitions(_queue_id, cardinality(_missing), _most, _counted, _upto) r;
        end if;
        with created as (
            insert into lockstep.partition (queue_id, name, created_at)
            select _queue_id, t.name, _now from unnest(_missing) with ordinality t (name, o) order by t.o
            on conflict do nothing
            returning id
        )
        insert into lockstep.cursor (partition_id, group_id)
        select c.id, g.id from created c cross join lockstep.consumer_group g where g.queue_id = _queue_id;
    end if;
    return query
    select q.id, q.compression, q.encryption, q.max_size > 0, (
        select array_agg(p.id order by t.o)
        from unnest(_partitions) with ordinality t (name, o)
        cross join lateral (select p.id from lockstep.partition p where p.queue_id = q.id and p.name = t.name limit 1) p
    ), _counted, _upto
    from lockstep.queue q where q.id = _queue_id;
end $$;

-- Counts the partitions of a queue that is to get _new more; raises SQLSTATE LS010 if that exceeds _most. Partitions that
-- the caller has already counted, _known up to the id _known_upto, are not counted again; without these, nor are those of
-- the last walk (figures.sql). Concurrently created partitions are not visible, so a queue may slightly exceed _most. The
-- settings are those of next_partitions.
create or replace function lockstep.room_for_partitions(
    _queue_id int, _new bigint, _most bigint, _known bigint, _known_upto bigint, out _counted bigint, out _upto bigint
) language plpgsql stable set enable_sort = off set enable_incremental_sort = off as $$
declare
    _kept boolean := _known is not null;
begin
    _counted := _known;
    _upto := _known_upto;
    loop
        if not _kept then
            select coalesce(max(f.partitions), 0), coalesce(max(f.upto), 0) into _counted, _upto
            from lockstep.figure f where f.queue_id = _queue_id and f.group_id = 0 and not f.walking;
        end if;
        select _counted + count(*), coalesce(max(c.id), _upto) into _counted, _upto
        from (
            select p.id from lockstep.partition p where p.queue_id between _queue_id and _queue_id and p.id > _upto
            order by p.queue_id, p.id limit greatest(_most - _counted, 0) + 1
        ) c;
        exit when _counted + _new <= _most;
        if not _kept then
            raise exception 'the queue has % partitions, and % new ones exceed its limit of % (queue_partitions_max)', _counted, _new, _most
                using errcode = 'LS010';
        end if;
        _kept := false;  -- some of them may be gone, or were never committed
    end loop;
end $$;

-- Records that messages of a queue have expiry times of their own; creates the queue if it is missing. A transaction
-- calls this before it creates partitions: creating them locks the queue's row in share mode, and two such transactions
-- that both want to mark the row would deadlock.
create or replace function lockstep.mark_expiring(_queue text, _at timestamptz) returns void language plpgsql as $$
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.check_name('queue', _queue), lockstep.need_names('{push}', array[_queue]); end if;
    if not exists (select 1 from lockstep.queue q where q.name = _queue) then
        perform lockstep.create_queue(_queue, null, null, coalesce(_at, clock_timestamp()));
    end if;
    update lockstep.queue q set expiring = true where q.name = _queue and not q.expiring;
end $$;

-- Creates a queue with default options, unless it exists. A null namespace or task becomes the corresponding part of
-- the dot-separated name. It looks first, because an insert that finds a conflict uses up an id, and there are only
-- 2^31 of them.
create or replace function lockstep.create_queue(_queue text, _namespace text, _task text, _now timestamptz) returns void language plpgsql as $$
begin
    if exists (select 1 from lockstep.queue q where q.name = _queue) then
        return;
    end if;
    insert into lockstep.queue (
        name, namespace, task, created_at, configured_at, lease_seconds, retry_limit, retry_delay_ms, retry_backoff,
        retry_delay_ms_max, on_exhausted, max_size, ttl_seconds, priority, delay_seconds, window_seconds,
        retention_enabled, retention_seconds, completed_retention_seconds, max_wait_seconds, encryption, compression,
        dead_letter_queue, dlq_after_max_retries
    ) values (
        _queue, coalesce(_namespace, split_part(_queue, '.', 1)), coalesce(_task, split_part(_queue, '.', 2)), _now, _now,
        300, 3, 1000, 1.0, 3600000, 'dead', 0, 3600, 0, 0, 0, false, 0, 0, 0, false, 'zstd', false, false
    ) on conflict do nothing;
end $$;
