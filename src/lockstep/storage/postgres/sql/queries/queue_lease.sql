-- The id of a queue, and the lease time of its messages.
select q.id, q.lease_seconds from lockstep.queue q where q.name = $1
