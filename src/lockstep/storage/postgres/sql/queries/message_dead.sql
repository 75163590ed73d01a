-- Which messages of partitions ($1) are dead letters, each between two seqs ($2, $3).
select t.id as partition_id, d.seq
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) t (id, first_seq, last_seq)
cross join lateral (
    select distinct d.seq from lockstep.dead_letter d
    where d.partition_id = t.id and d.seq between t.first_seq and t.last_seq offset 0
) d
