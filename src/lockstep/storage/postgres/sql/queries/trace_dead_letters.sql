-- The dead letters of queues.
select q.name, p.name, d.group_name, d.seq, d.error
from lockstep.dead_letter d
join lockstep.partition p on p.id = d.partition_id
join lockstep.queue q on q.id = d.queue_id
where d.queue_id = any (array(select w.id from lockstep.queue w where w.name = any ($1::text[])))
