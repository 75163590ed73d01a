-- The cursors of partitions, for the status of their messages.
select c.partition_id, g.name, c.acked, c.due_at, c.lease_id::text, c.lease_to, g.mode
from lockstep.cursor c join lockstep.consumer_group g on g.id = c.group_id
where c.partition_id = any ($1::bigint[])
order by c.partition_id, g.name
