-- The run that holds one message, by its segment and ordinal, or by its partition and seq. A message that was replayed
-- to another queue exists twice; the older one comes first.
select q.name as queue, p.name as partition, m.partition_id, r.first_seq + $2::int - r.ordinal as seq, r.segment_id, $2::int as ordinal
from lockstep.segment s
cross join lateral unnest(s.partition_ids, s.first_seqs, s.counts) m (partition_id, first_seq, n)
join lockstep.run r on r.partition_id = m.partition_id and r.segment_id = s.id and r.first_seq between m.first_seq and m.first_seq + m.n - 1
cross join lateral (select p.name, p.queue_id from lockstep.partition p where p.id = m.partition_id limit 1) p
join lockstep.queue q on q.id = p.queue_id
where s.uuid = $1 and $2::int between r.ordinal and r.ordinal + (r.last_seq - r.first_seq) and ($3::bigint is null or m.partition_id = $3)
order by s.id
