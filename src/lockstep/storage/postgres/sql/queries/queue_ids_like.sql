-- The ids of queues whose names are like a pattern ($1), at most so many ($2).
select q.name, q.id from lockstep.queue q where q.name like $1::text order by q.name limit $2
