-- What shared groups have in flight in partitions between two seqs.
select d.partition_id, g.name as "group", d.from_seq, d.to_seq, d.due_at, d.lease_id::text as lease_id
from lockstep.delivery d
cross join lateral (select g.name from lockstep.consumer_group g where g.id = d.group_id limit 1) g
where d.partition_id = any ($1::bigint[]) and d.from_seq <= $3 and d.to_seq >= $2
