-- The names of trace events, latest first.
select n.name, count(*), count(distinct (n.partition_id, n.seq)), max(n.created_at)
from lockstep.trace_name n
join lockstep.partition p on p.id = n.partition_id
join lockstep.queue q on q.id = p.queue_id
group by n.name
order by max(n.created_at) desc, n.name limit $1 offset $2
