-- The fill level of queues with a max_size. Nothing here touches other queues.
--
-- A push to such a queue holds its row lock, so pushes count one after the other. Everything else that moves a cursor
-- counts after its cursor update, in a later statement: it either sees a max_size that was just set, or its cursor lock
-- makes recount() wait for it.

-- Pending messages of a queue: the lag of its furthest-behind group or, without groups, all stored messages.
create or replace function lockstep.pending(_queue_id int) returns bigint language sql stable as $$
    select coalesce(max(t.pending) filter (where t.group_id <> 0), max(t.pending) filter (where t.group_id = 0), 0)::bigint
    from (
        select d.group_id, sum(d.pending) as pending from lockstep.depth d
        -- A session that saw a group which was deleted in the meantime may have counted for it.
        where d.queue_id = _queue_id and (d.group_id = 0 or exists (select 1 from lockstep.consumer_group g where g.id = d.group_id))
        group by d.group_id
    ) t
$$;

-- Counts moved cursors: for each, the group, the partition, and the old and new position.
create or replace function lockstep.count_moves(_group_ids int[], _partition_ids bigint[], _from bigint[], _to bigint[]) returns void language sql as $$
    insert into lockstep.depth as d (queue_id, group_id, slot, pending)
    select q.id, g.id, 1 + pg_backend_pid() % 16, -sum(
        case when t.upto >= t.after then lockstep.still_stored(t.partition_id, t.after, t.upto)
             else -lockstep.still_stored(t.partition_id, t.upto, t.after) end
    )
    from unnest(_group_ids, _partition_ids, _from, _to) t (group_id, partition_id, after, upto)
    join lockstep.consumer_group g on g.id = t.group_id
    join lockstep.queue q on q.id = g.queue_id and q.max_size > 0
    group by q.id, g.id
    order by q.id, g.id
    on conflict (queue_id, group_id, slot) do update set pending = d.pending + excluded.pending
$$;

-- Recomputes a queue's counts. Locks its row, its partitions and its cursors, in this order, before it reads.
create or replace function lockstep.recount(_queue_id int) returns void language plpgsql as $$
begin
    perform 1 from lockstep.queue q where q.id = _queue_id and q.max_size > 0 for no key update;
    if not found then
        delete from lockstep.depth d where d.queue_id = _queue_id;
        return;
    end if;
    perform lockstep.lock_places(_queue_id);
    delete from lockstep.depth d where d.queue_id = _queue_id;
    insert into lockstep.depth (queue_id, group_id, slot, pending)
    select _queue_id, c.group_id, c.slot, c.pending from lockstep.counted(_queue_id) c;
end $$;

-- Locks all partitions, cursors and deliveries, in this order, of a queue whose row is locked.
create or replace function lockstep.lock_places(_queue_id int) returns void language plpgsql as $$
begin
    -- A range instead of a single value, so that the planner uses the index on both columns rather than all of the one
    -- by id.
    perform 1 from lockstep.partition p
    where p.queue_id between _queue_id and _queue_id and p.id > 0
    order by p.queue_id, p.id for no key update;
    perform 1 from lockstep.cursor c join lockstep.partition p on p.id = c.partition_id
    where p.queue_id between _queue_id and _queue_id and p.id > 0
    order by p.queue_id, c.partition_id, c.group_id for no key update of c;
    -- Acks that end whole leases hold no cursor.
    perform 1 from lockstep.delivery d join lockstep.partition p on p.id = d.partition_id
    where p.queue_id between _queue_id and _queue_id and p.id > 0
    order by p.queue_id, d.partition_id, d.group_id, d.from_seq for no key update of d;
end $$;

-- What the counts of a queue should be. A missing cursor counts as being at the start or, if its group began at the
-- end, at the end (group.sql).
create or replace function lockstep.counted(_queue_id int) returns table (group_id int, slot smallint, pending bigint) language sql stable as $$
    select 0, 0::smallint, coalesce(sum(lockstep.lag(p.id, lockstep.start_of(p.id))), 0)::bigint
    from lockstep.partition p where p.queue_id = _queue_id
    union all
    select g.id, 0::smallint, coalesce(sum(case
               when c.partition_id is not null then lockstep.behind(c)
               when g.begins <> 'end' then lockstep.lag(p.id, lockstep.start_of(p.id)) end), 0)::bigint
    from lockstep.consumer_group g
    left join lockstep.partition p on p.queue_id = g.queue_id
    left join lockstep.cursor c on c.partition_id = p.id and c.group_id = g.id
    where g.queue_id = _queue_id
    group by g.id
$$;

-- The fill level of those of the queues that have a max_size.
create or replace function lockstep.occupancy(_queues text[]) returns table (queue text, depth bigint, max_size bigint) language plpgsql stable as $$
begin
    if not lockstep.is_trusted() then perform lockstep.need_names('{push}', _queues); end if;
    return query select q.name, lockstep.pending(q.id), q.max_size from lockstep.queue q where q.name = any (_queues) and q.max_size > 0;
end $$;
