-- The names of trace events of some queues, or of all, latest first.
select n.name, count(*) as traces, count(distinct (n.partition_id, n.seq)) as messages, max(n.created_at) as last_seen_at
from lockstep.trace_name n
join lockstep.partition p on p.id = n.partition_id
join lockstep.queue q on q.id = p.queue_id
where $3::text[] is null or q.name = any ($3)
group by n.name
order by max(n.created_at) desc, n.name limit $1 offset $2
