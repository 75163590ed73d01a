-- The trace events of one message, oldest first.
select e.id, q.name as queue, p.name as partition, e.partition_id, e.seq, e.transaction_id, e.data::text as data, e.event_type,
       e.group_name as "group", e.worker, e.names, e.created_at
from lockstep.partition p
join lockstep.queue q on q.id = p.queue_id
join lockstep.trace_event e on e.partition_id = p.id and e.seq = $2
where p.id = $1
order by e.id limit $3
