-- What is left of segments: their runs, as columns. The manifest says where to find them.
select s.id, array_agg(r.partition_id order by r.ordinal), array_agg(r.first_seq order by r.ordinal),
       array_agg(r.last_seq - r.first_seq + 1 order by r.ordinal), array_agg(r.ordinal order by r.ordinal)
from lockstep.segment s
cross join lateral unnest(s.partition_ids, s.first_seqs, s.counts) m (partition_id, first_seq, n)
join lockstep.run r on r.partition_id = m.partition_id and r.segment_id = s.id
    and r.first_seq between m.first_seq and m.first_seq + m.n - 1
where s.id = any ($1::bigint[]) group by s.id
