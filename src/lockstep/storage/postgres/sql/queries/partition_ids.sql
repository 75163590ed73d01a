-- The ids of partitions of some queues ($1) by name ($2).
select p.id
from unnest($1::int[]) q (id)
cross join unnest($2::text[]) n (name)
cross join lateral (select p.id from lockstep.partition p where p.queue_id = q.id and p.name = n.name limit 1) p
order by p.id
