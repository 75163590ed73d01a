-- The delivery attempt of everything that the ordinals of a stream ($1) after one ($2) and up to another ($3) have
-- leased, by partition and seqs: as for a pop, everything leased of a partition has the attempt of its head; in a
-- shared group each range has its own.
select p.partition_id, 0::bigint as first_seq, null::bigint as last_seq, c.attempts + 1 as attempt
from lockstep.spark_lease l
cross join lateral (select distinct unnest(l.partition_ids) as partition_id) p
join lockstep.cursor c on c.partition_id = p.partition_id and c.group_id = l.group_id and c.lease_id = l.lease_id
where l.stream = $1 and l.ordinal > $2::bigint and l.ordinal <= $3::bigint and l.acked_at is null
union all
select d.partition_id, d.from_seq, d.to_seq, d.attempts + 1
from lockstep.spark_lease l join lockstep.delivery d on d.lease_id = l.lease_id and d.group_id = l.group_id
where l.stream = $1 and l.ordinal > $2::bigint and l.ordinal <= $3::bigint and l.acked_at is null
