-- The names of all queues.
select q.name from lockstep.queue q order by q.name
