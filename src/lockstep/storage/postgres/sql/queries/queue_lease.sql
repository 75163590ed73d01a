-- The id of a queue, and for how long its messages are leased.
select q.id, q.lease_seconds from lockstep.queue q where q.name = $1
