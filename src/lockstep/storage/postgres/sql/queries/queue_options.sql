-- A queue's options, by its name.
select lockstep.queue_options(q.id) as options from lockstep.queue q where q.name = $1
