-- What shared groups have in flight of partitions ($1), each between two seqs ($2, $3).
select d.partition_id, g.name as "group", d.from_seq, d.to_seq, d.due_at, d.lease_id::text as lease_id
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) t (id, first_seq, last_seq)
cross join lateral (
    select d.* from lockstep.delivery d
    where d.partition_id = t.id and d.from_seq <= t.last_seq and d.to_seq >= t.first_seq offset 0
) d
cross join lateral (select g.name from lockstep.consumer_group g where g.id = d.group_id limit 1) g
