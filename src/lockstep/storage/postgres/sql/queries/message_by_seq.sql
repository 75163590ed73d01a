-- The runs that hold messages, by partition and seq.
select q.name as queue, p.name as partition, t.partition_id, t.seq, r.segment_id, (r.ordinal + t.seq - r.first_seq)::int as ordinal
from unnest($1::bigint[], $2::bigint[]) with ordinality t (partition_id, seq, o)
cross join lateral (select p.name, p.queue_id from lockstep.partition p where p.id = t.partition_id limit 1) p
join lockstep.queue q on q.id = p.queue_id
cross join lateral lockstep.runs_between(t.partition_id, t.seq - 1, t.seq) r
order by t.o
