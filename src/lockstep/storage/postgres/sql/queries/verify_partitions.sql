-- How far the next partitions of a queue after a place reach, and how many they are.
select max(p.id), count(*) from (
    select p.id from lockstep.partition p where p.queue_id = $1 and p.id > $2::bigint order by p.id limit $3
) p
