-- How far the next partitions of a queue after a place reach, and how many they are.
select max(t.id), count(*) from unnest(lockstep.next_partitions($1, $2::bigint, $3)) t (id)
