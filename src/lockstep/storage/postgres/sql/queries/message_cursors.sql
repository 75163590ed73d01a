-- The cursors of partitions, for the status of their messages.
select c.partition_id, g.name, c.acked, c.due_at, c.lease_id::text, c.lease_to, g.mode
from lockstep.cursor c
cross join lateral (select g.name, g.mode from lockstep.consumer_group g where g.id = c.group_id limit 1) g
where c.partition_id = any ($1::bigint[])
order by c.partition_id, g.name
