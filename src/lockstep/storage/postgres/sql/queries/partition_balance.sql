-- How much is pending in each numbered partition of a balanced queue: the lag of its furthest-behind group.
select coalesce(c.pending, lockstep.lag(p.id, lockstep.start_of(p.id)))
from lockstep.queue q
cross join lateral generate_series(0, q.partitions - 1) n (n)
join lockstep.partition p on p.queue_id = q.id and p.name = n.n::text
cross join lateral (select max(lockstep.lag(c.partition_id, c.acked)) as pending from lockstep.cursors_at(p.queue_id, p.id) c) c
where q.id = $1
order by n.n
