-- Messages of a dead queue that may be sent back, by partition id and seq, after a place.
select q.name as queue, p.name as partition, p.id as partition_id, t.seq, r.segment_id, (r.ordinal + t.seq - r.first_seq)::int as ordinal
from lockstep.partition p
join lockstep.queue q on q.id = p.queue_id
join lockstep.run r on r.partition_id = p.id and r.segment_id is not null
cross join lateral generate_series(r.first_seq, r.last_seq) t (seq)
where p.queue_id = $1 and (p.id > $2 or (p.id = $2 and t.seq > $3))
  and lockstep.is_takeable(p.id, t.seq, coalesce($5::timestamptz, clock_timestamp()))
order by p.id, t.seq limit $4
