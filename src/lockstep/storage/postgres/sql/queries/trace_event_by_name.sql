-- Trace events with a name, newest first, with the places of their messages.
select e.id, q.name as queue, p.name as partition, e.partition_id, e.seq, e.transaction_id, e.data::text as data, e.event_type,
       e.group_name as "group", e.worker, e.names, e.created_at,
       r.segment_id, (r.ordinal + e.seq - r.first_seq)::int as ordinal
from (
    select n.event_id from lockstep.trace_name n
    join lockstep.partition p on p.id = n.partition_id
    join lockstep.queue q on q.id = p.queue_id
    where n.name = $1 order by n.event_id desc limit $2 offset $3
) n
join lockstep.trace_event e on e.id = n.event_id
join lockstep.partition p on p.id = e.partition_id
join lockstep.queue q on q.id = p.queue_id
left join lateral lockstep.runs_between(e.partition_id, e.seq - 1, e.seq) r on true
order by e.id desc
