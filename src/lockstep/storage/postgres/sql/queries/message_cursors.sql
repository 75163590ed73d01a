-- The cursors of partitions, for the status of their messages, and substitutes for missing ones.
select t.partition_id, t.name, t.acked, t.due_at, t.lease_id::text as lease_id, t.lease_to, t.mode
from (
    select c.partition_id, g.name, c.acked, c.due_at, c.lease_id, c.lease_to, g.mode
    from lockstep.cursor c
    cross join lateral (select g.name, g.mode from lockstep.consumer_group g where g.id = c.group_id limit 1) g
    where c.partition_id = any ($1::bigint[])
    union all
    select p.id, g.name, c.acked, c.due_at, c.lease_id, c.lease_to, g.mode
    from unnest($1::bigint[]) t (id)
    cross join lateral (select p.id, p.queue_id from lockstep.partition p where p.id = t.id limit 1) p
    cross join lateral (
        select g.* from lockstep.consumer_group g
        where g.queue_id = p.queue_id and g.placed_upto is not null
          and not exists (select 1 from lockstep.cursor c where c.partition_id = p.id and c.group_id = g.id)
        offset 0
    ) g
    cross join lateral lockstep.cursor_at(g, p.id) c
    -- None of this runs while every group has all its cursors.
    where (select exists (select 1 from lockstep.consumer_group u where u.placed_upto is not null))
) t
order by t.partition_id, t.name
