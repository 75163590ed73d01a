-- Scheduled messages: added, found when due, taken for promotion.
--
-- Guarantees: a key or a transaction id is scheduled only once; a message is promoted exactly once, because its row is
-- deleted in the transaction that pushes it; one transaction at a time promotes messages of a queue, so that due order
-- is seq order.
-- Locks: the queue row, then rows of scheduled messages, then what a push locks.
-- Indexes: scheduled_due, scheduled_queue_due, scheduled_key, scheduled_transaction.

-- Draws ids for scheduled messages. Runs with the owner's rights, so that a role needs none on the sequence.
create or replace function lockstep.draw_scheduled_ids(_count int) returns bigint[] language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select array(select nextval(pg_get_serial_sequence('lockstep.scheduled', 'id')) from generate_series(1, _count))
$$;

-- Adds messages of locked queues; one row per item, in no particular order. An item whose key or transaction id is
-- already scheduled is a duplicate, and returns the existing message. The items of one call have different keys and
-- transaction ids. They are inserted in the order of those, so that two calls do not deadlock; the ids are drawn before
-- that, so that messages due at the same time keep the order of the call. Raises SQLSTATE LS001 for an encrypted
-- message that is not bound to its queue: nobody would accept it.
create or replace function lockstep.schedule(
    _queue_ids int[], _partitions text[], _due_ats timestamptz[], _keys text[], _transaction_ids text[],
    _codecs smallint[], _bodies bytea[], _at timestamptz
) returns table (item int, id bigint, due_at timestamptz, duplicate boolean) language plpgsql as $$
#variable_conflict use_column
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _ids bigint[] := lockstep.draw_scheduled_ids(cardinality(_queue_ids));
    _left int[];  -- null: all of them
    _items int[];
    _found bigint[];
    _found_due_ats timestamptz[];
    _duplicates boolean[];
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at] || _due_ats), lockstep.need_places('{push}', _queue_ids); end if;
    if 3 = any (_codecs) then
        raise exception 'the message is encrypted as an older version does it' using errcode = 'LS001';
    end if;
    for _attempt in 1 .. 20 loop
        insert into lockstep.scheduled (id, queue_id, partition_name, due_at, key, transaction_id, created_at, codec, body)
        overriding system value
        select t.id, t.queue_id, t.partition_name, t.due_at, t.key, t.transaction_id, _now, t.codec, t.body
        from unnest(_ids, _queue_ids, _partitions, _due_ats, _keys, _transaction_ids, _codecs, _bodies) with ordinality
            t (id, queue_id, partition_name, due_at, key, transaction_id, codec, body, o)
        where _left is null or t.o = any (_left)
        order by t.queue_id, t.key, t.partition_name, t.transaction_id, t.o
        on conflict do nothing;
        -- In a later statement, which sees the rows that the insert has waited for.
        select array_agg(t.o::int), array_agg(s.id), array_agg(s.due_at), array_agg(s.id <> t.id)
        into _items, _found, _found_due_ats, _duplicates
        from unnest(_ids, _queue_ids, _partitions, _keys, _transaction_ids) with ordinality
            t (id, queue_id, partition_name, key, transaction_id, o)
        cross join lateral (
            select s.id, s.due_at from lockstep.scheduled s where s.id = t.id
            union all
            select s.id, s.due_at from lockstep.scheduled s where s.queue_id = t.queue_id and s.key = t.key
            union all
            select s.id, s.due_at from lockstep.scheduled s
            where s.queue_id = t.queue_id and s.partition_name = t.partition_name and s.transaction_id = t.transaction_id
            limit 1
        ) s
        where _left is null or t.o = any (_left);
        return query select * from unnest(_items, _found, _found_due_ats, _duplicates);
        exit when cardinality(_items) = coalesce(cardinality(_left), cardinality(_ids));
        -- The conflicting messages are gone in the meantime: promoted or cancelled.
        _left := array(select unnest(coalesce(_left, array(select generate_series(1, cardinality(_ids))))) except select unnest(_items));
    end loop;
end $$;

-- When the next scheduled or recurring message is due, and the time now: one index probe each.
create or replace function lockstep.next_due(_after timestamptz, _at timestamptz, out _due_at timestamptz, out _now timestamptz) language plpgsql stable as $$
begin
    _now := coalesce(_at, clock_timestamp());
    select least(
        (select s.due_at from lockstep.scheduled s where s.due_at > coalesce(_after, '-infinity') order by s.due_at, s.id limit 1),
        (select c.next_at from lockstep.cron c where c.next_at > coalesce(_after, '-infinity') order by c.next_at limit 1)
    ) into _due_at;
end $$;

-- The id of a scheduled message, by id, or by queue and key. Stable, so that it is looked up once.
create or replace function lockstep.scheduled_id(_id bigint, _queue text, _key text) returns bigint language sql stable as $$
    select coalesce(_id, (
        select s.id from lockstep.queue q join lockstep.scheduled s on s.queue_id = q.id where q.name = _queue and s.key = _key
    ))
$$;

-- The queues that have something due, by id: walks from queue to queue through the index, however much each of them
-- has.
create or replace function lockstep.queues_due(_at timestamptz) returns table (id int, name text) language sql stable as $$
    with recursive walk (queue_id) as (
        (select s.queue_id from lockstep.scheduled s order by s.queue_id limit 1)
        union all
        select (select s.queue_id from lockstep.scheduled s where s.queue_id > w.queue_id order by s.queue_id limit 1)
        from walk w where w.queue_id is not null
    )
    select q.id, q.name from walk w join lockstep.queue q on q.id = w.queue_id
    where exists (select 1 from lockstep.scheduled s where s.queue_id = w.queue_id and s.due_at <= _at)
    order by q.id
$$;

-- Locks and returns the next due messages of a queue, in due order: at most _limit, and no more than one beyond _bytes.
-- Returns nothing if another transaction promotes this queue now. Waits for a message that is being cancelled or
-- rescheduled, because later messages must not overtake it; leaves it out if it is gone or no longer due.
-- _must_be_sealed: the message was added after the queue was encrypted.
create or replace function lockstep.take_due(_queue_id int, _limit int, _bytes bigint, _at timestamptz)
returns table (id bigint, partition_name text, codec smallint, body bytea, key text, must_be_sealed boolean) language plpgsql as $$
#variable_conflict use_column
declare
    _ids bigint[];
begin
    -- The first number is the ASCII of `lock`.
    if not pg_try_advisory_xact_lock(1819239275, _queue_id) then
        return;
    end if;
    -- As a push does: the stronger lock if the queue has a max_size, so that its fill level does not change.
    if exists (select 1 from lockstep.queue q where q.id = _queue_id and q.max_size > 0) then
        perform 1 from lockstep.queue q where q.id = _queue_id for no key update;
    else
        perform 1 from lockstep.queue q where q.id = _queue_id for share;
    end if;
    if not found then
        return;  -- the queue was deleted, and its scheduled messages go, too
    end if;
    _ids := array(
        select t.id from (
            select s.id, sum(octet_length(s.body)) over (order by s.due_at, s.id) - octet_length(s.body) as before
            from (
                select s.id, s.due_at, s.body from lockstep.scheduled s
                where s.queue_id = _queue_id and s.due_at <= _at order by s.due_at, s.id limit _limit for update
            ) s
        ) t
        where t.before < _bytes
    );
    return query
    select s.id, s.partition_name, s.codec, s.body, s.key, q.encryption and s.id > q.waiting_sealed_after
    from lockstep.scheduled s join lockstep.queue q on q.id = s.queue_id
    where s.id = any (_ids) and s.due_at <= _at order by s.due_at, s.id;
end $$;

-- Removes scheduled messages of a queue, or of one partition of it, at most _limit; returns their number.
create or replace function lockstep.remove_scheduled(_queue_id int, _partition text, _limit int) returns bigint language sql as $$
    with gone as (
        delete from lockstep.scheduled s where s.id = any (array(
            select w.id from lockstep.scheduled w
            where w.queue_id = _queue_id and (_partition is null or w.partition_name = _partition) limit _limit for update))
        returning 1
    )
    select count(*) from gone
$$;

-- Creates or replaces a recurring message. If its times stay the same, so does its next time.
create or replace function lockstep.set_cron(
    _name text, _queue text, _partition text, _expression text, _timezone text, _catch_up text, _enabled boolean,
    _codec smallint, _body bytea, _next_at timestamptz, _at timestamptz
) returns void language sql as $$
    insert into lockstep.cron as c (
        name, queue, partition_name, expression, timezone, catch_up, enabled, codec, body, created_at, next_at
    ) values (
        _name, _queue, _partition, _expression, _timezone, _catch_up, _enabled, _codec, _body, coalesce(_at, clock_timestamp()),
        case when _enabled then _next_at end
    )
    on conflict (name) do update
    set queue = _queue, partition_name = _partition, expression = _expression, timezone = _timezone, catch_up = _catch_up,
        enabled = _enabled, codec = _codec, body = _body,
        next_at = case
            when not _enabled then null
            when c.enabled and c.expression = _expression and c.timezone = _timezone then c.next_at
            else _next_at
        end
$$;
