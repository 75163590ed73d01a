-- The messages of a trace, oldest first.
select q.name as queue, p.name as partition, t.partition_id, t.seq, r.segment_id, (r.ordinal + t.seq - r.first_seq)::int as ordinal
from lockstep.trace_index t
cross join lateral (select p.name, p.queue_id from lockstep.partition p where p.id = t.partition_id limit 1) p
join lockstep.queue q on q.id = p.queue_id
cross join lateral lockstep.runs_between(t.partition_id, t.seq - 1, t.seq) r
join lockstep.segment s on s.id = r.segment_id
where t.trace_id = $1
order by s.created_at, s.uuid, r.ordinal + t.seq - r.first_seq limit $2
