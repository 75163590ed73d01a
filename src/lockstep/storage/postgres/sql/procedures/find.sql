-- Lookups that other calls make first: names to ids, segments by id, and others. They are functions so that a role
-- needs no right on tables. Read-only, without locks. Each requires a right on the queue (role_rule.sql).

create or replace function lockstep.find_queue(_queue text)
returns table (id int, compression text, encryption boolean, limited boolean) language plpgsql stable as $$
begin
    if not lockstep.is_trusted() and not lockstep.may_push(_queue) then perform lockstep.need_names('{push,pop,manage}', array[_queue]); end if;
    return query select q.id, q.compression, q.encryption, q.max_size > 0 from lockstep.queue q where q.name = _queue;
end $$;

create or replace function lockstep.find_partition(_queue_id int, _partition text) returns table (id bigint) language plpgsql stable as $$
begin
    if not lockstep.is_trusted() then perform lockstep.need_places('{push,pop,manage}', array[_queue_id]); end if;
    return query select p.id from lockstep.partition p where p.queue_id = _queue_id and p.name = _partition;
end $$;

create or replace function lockstep.find_group(_queue_id int, _group text)
returns table (id int, mode text, placed boolean) language plpgsql stable as $$
begin
    if not lockstep.is_trusted() then perform lockstep.need_places('{pop,manage}', array[_queue_id]); end if;
    return query
    select g.id, g.mode, g.placed_upto is null from lockstep.consumer_group g where g.queue_id = _queue_id and g.name = _group;
end $$;

-- Whether a new group would exceed the maximum number of groups of its queue.
create or replace function lockstep.group_room(_queue_id int, _most bigint, _group text) returns boolean language plpgsql stable as $$
begin
    if not lockstep.is_trusted() then perform lockstep.need_places('{pop,manage}', array[_queue_id]); end if;
    return (
        select count(*) >= _most and not coalesce(bool_or(g.name = _group), false) from lockstep.consumer_group g
        where g.queue_id = _queue_id and g.name <> '__QUEUE_MODE__');
end $$;

-- Over how many partitions a queue is balanced; 0: not balanced.
create or replace function lockstep.balanced_over(_queue_id int) returns table (partitions int) language plpgsql stable as $$
begin
    if not lockstep.is_trusted() then perform lockstep.need_places('{push}', array[_queue_id]); end if;
    return query select q.partitions from lockstep.queue q where q.id = _queue_id;
end $$;

-- The number of pending messages in each numbered partition of a balanced queue: the lag of its furthest-behind group.
create or replace function lockstep.partition_balance(_queue_id int) returns table (pending bigint) language plpgsql stable as $$
begin
    if not lockstep.is_trusted() then perform lockstep.need_places('{push}', array[_queue_id]); end if;
    return query
    select coalesce(c.pending, lockstep.lag(p.id, lockstep.start_of(p.id)))
    from lockstep.queue q
    cross join lateral generate_series(0, q.partitions - 1) n (n)
    join lockstep.partition p on p.queue_id = q.id and p.name = n.n::text
    cross join lateral (select max(lockstep.lag(c.partition_id, c.acked)) as pending from lockstep.cursors_at(p.queue_id, p.id) c) c
    where q.id = _queue_id
    order by n.n;
end $$;

-- The queues of a namespace and/or task, higher priority first, with the mode that a group has there, or will have.
create or replace function lockstep.queues_by_priority(_namespace text, _task text, _group text, _mode text)
returns table (queue text, mode text) language plpgsql stable as $$
begin
    if not lockstep.is_trusted() then perform lockstep.need_names('{pop}', '{*}'); end if;
    return query
    select q.name, coalesce(g.mode, _mode, q.group_mode) from lockstep.queue q
    left join lockstep.consumer_group g on g.queue_id = q.id and g.name = _group
    where (_namespace is null or q.namespace = _namespace) and (_task is null or q.task = _task)
    order by q.priority desc, q.name;
end $$;

-- Segments by id, with their messages; encrypted ones also with their manifest. Whether a segment must be encrypted
-- follows from its id: segments stored before their queue was encrypted in this form may be unencrypted.
create or replace function lockstep.load_segments(_ids bigint[]) returns table (
    id bigint, uuid uuid, created_at timestamptz, codec smallint, queue_id int, partition_ids bigint[], counts int[],
    must_be_sealed boolean, body bytea, payloads bytea[], transaction_ids text[], trace_ids uuid[], kinds text[], refs text[],
    encodings text[], headers bytea[], producer_subs text[], expires_at timestamptz[]
) language plpgsql stable as $$
begin
    if not lockstep.is_trusted() then perform lockstep.need_segments('{pop}', _ids); end if;
    return query
    select s.id, s.uuid, s.created_at, s.codec, s.queue_id,
           case when s.codec & 4 <> 0 then s.partition_ids end, case when s.codec & 4 <> 0 then s.counts end,
           (select q.encryption and s.id > q.sealed_after from lockstep.queue q where q.id = s.queue_id),
           s.body, s.payloads, s.transaction_ids, s.trace_ids, s.kinds, s.refs, s.encodings, s.headers, s.producer_subs, s.expires_at
    from lockstep.segment s where s.id = any (_ids);
end $$;
