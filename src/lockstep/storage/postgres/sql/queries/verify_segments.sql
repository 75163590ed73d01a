-- How far the next segments of a queue after a place reach, and how many they are.
select max(s.id), count(*) from (
    select s.id from lockstep.segment s where s.queue_id = $1 and s.id > $2::bigint order by s.id limit $3
) s
