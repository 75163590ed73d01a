-- The end of the next slice of partitions of a queue after a place, and its number of partitions.
select max(t.id), count(*) from unnest(lockstep.next_partitions($1, $2::bigint, $3)) t (id)
