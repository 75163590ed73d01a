-- The end of the next slice of segments of a queue after a place, and its number of segments.
select max(s.id), count(*) from (
    select s.id from lockstep.segment s where s.queue_id = $1 and s.id > $2::bigint order by s.id limit $3
) s
