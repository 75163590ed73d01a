-- The ids of queues by name.
select q.name, q.id from lockstep.queue q where q.name = any ($1::text[])
