-- The ids of queues whose names match a pattern ($1), at most $2.
select q.name, q.id from lockstep.queue q where q.name like $1::text order by q.name limit $2
