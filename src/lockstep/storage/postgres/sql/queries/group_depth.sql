-- What a group has before it in its queue.
select coalesce(sum(lockstep.lag(c.partition_id, c.acked)), 0)::bigint,
       count(*) filter (where lockstep.lag(c.partition_id, c.acked) > 0),
       coalesce(sum(case when c.lease_id is not null and c.due_at > coalesce($2::timestamptz, clock_timestamp())
                         then lockstep.stored_between(c.partition_id, c.acked, c.lease_to) end), 0)::bigint
from lockstep.consumer_group g
join lockstep.partition p on p.queue_id = g.queue_id
join lockstep.cursor c on c.partition_id = p.id and c.group_id = g.id
where g.id = $1
