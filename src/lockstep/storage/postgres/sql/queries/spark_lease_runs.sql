-- The runs that the ordinals of a stream ($1) after one ($2) and up to another ($3) have leased, segment by segment.
select t.partition_id, t.first_seq, t.last_seq, t.segment_id, l.queue_id
from lockstep.spark_lease l
cross join lateral unnest(l.partition_ids, l.first_seqs, l.last_seqs, l.segment_ids) t (partition_id, first_seq, last_seq, segment_id)
where l.stream = $1 and l.ordinal > $2::bigint and l.ordinal <= $3::bigint and l.acked_at is null
order by t.segment_id, t.partition_id, t.first_seq
