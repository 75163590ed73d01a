-- How many messages groups still have to complete, counted now over all their partitions.
select coalesce(sum(lockstep.behind(c)), 0)::bigint
from lockstep.consumer_group g
join lockstep.partition p on p.queue_id = g.queue_id
cross join lateral lockstep.cursor_at(g, p.id) c
where g.id = any ($1::int[])
