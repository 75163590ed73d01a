-- How far the next partitions of a queue after a place reach, and how many they are.
select max(p.id), count(*) from (
    select p.id from lockstep.partition p where p.queue_id between $1 and $1 and p.id > $2::bigint order by p.queue_id, p.id limit $3
) p
