-- Messages that wait for their time: put among the waiting ones, found when due, taken for promotion.
--
-- Guarantees: a key, or a transaction id, waits once; a message is promoted exactly once, because its row is deleted in the
-- transaction that pushes it; of one queue one transaction at a time promotes, so that due order is seq order.
-- Locks: the queue row, then rows of waiting messages, then what a push locks.
-- Indexes: scheduled_due, scheduled_queue_due, scheduled_key, scheduled_transaction.

-- Draws ids for waiting messages. With the owner's rights: a role needs none on the sequence.
create or replace function lockstep.draw_scheduled_ids(_count int) returns bigint[] language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select array(select nextval(pg_get_serial_sequence('lockstep.scheduled', 'id')) from generate_series(1, _count))
$$;

-- Adds messages of locked queues; one row per item, in no order. An item whose key or transaction id waits already is a
-- duplicate, and gives the one that waits. The items of one call have different keys and transaction ids.
-- They are inserted in the order of those, so that two calls do not wait for each other; the ids are drawn before, so that
-- what is due at the same time keeps the order of the call. Raises SQLSTATE LS001 for what is encrypted without being bound to
-- its queue: nobody would accept it.
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
    if not lockstep.is_trusted() then perform lockstep.need_places('{push}', _queue_ids); end if;
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
        -- In a later statement, which sees what the insert has waited for.
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
        -- What was in the way of the others is gone meanwhile: promoted, or cancelled.
        _left := array(select unnest(coalesce(_left, array(select generate_series(1, cardinality(_ids))))) except select unnest(_items));
    end loop;
end $$;

-- When the next thing is due, of waiting and of recurring messages, and the time: one probe of an index each.
create or replace function lockstep.next_due(_after timestamptz, _at timestamptz, out _due_at timestamptz, out _now timestamptz) language plpgsql stable as $$
begin
    _now := coalesce(_at, clock_timestamp());
    select least(
        (select s.due_at from lockstep.scheduled s where s.due_at > coalesce(_after, '-infinity') order by s.due_at, s.id limit 1),
        (select c.next_at from lockstep.cron c where c.next_at > coalesce(_after, '-infinity') order by c.next_at limit 1)
    ) into _due_at;
end $$;

-- Which waiting message is meant: by its id, or by queue and key. Stable, so that it is looked up once.
create or replace function lockstep.scheduled_id(_id bigint, _queue text, _key text) returns bigint language sql stable as $$
    select coalesce(_id, (
        select s.id from lockstep.queue q join lockstep.scheduled s on s.queue_id = q.id where q.name = _queue and s.key = _key
    ))
$$;

-- The queues that have something due, by id: a walk from queue to queue through the index, whatever each of them has.
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
-- Nothing if somebody else promotes this queue now. What is being cancelled or rescheduled is waited for, because what
-- comes after it must not overtake it; it is left out if it is gone or not due any more.
-- _must_be_sealed: it was not there before the queue was encrypted.
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
    -- As a push does: the stronger lock where the queue has a max_size, so that how full it is stays as it is found.
    if exists (select 1 from lockstep.queue q where q.id = _queue_id and q.max_size > 0) then
        perform 1 from lockstep.queue q where q.id = _queue_id for no key update;
    else
        perform 1 from lockstep.queue q where q.id = _queue_id for share;
    end if;
    if not found then
        return;  -- it was deleted, and what waits in it goes, too
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

-- Removes waiting messages of a queue, or of one partition of it, at most _limit; returns how many.
create or replace function lockstep.remove_scheduled(_queue_id int, _partition text, _limit int) returns bigint language sql as $$
    with gone as (
        delete from lockstep.scheduled s where s.id = any (array(
            select w.id from lockstep.scheduled w
            where w.queue_id = _queue_id and (_partition is null or w.partition_name = _partition) limit _limit for update))
        returning 1
    )
    select count(*) from gone
$$;

-- Creates or replaces a recurring message. Where its times stay the same, so does the next one of them.
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
