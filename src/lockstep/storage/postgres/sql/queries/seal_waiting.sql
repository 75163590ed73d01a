-- How the scheduled messages after a given one ($1) are stored, like seal_segments for segments.
select s.id, q.encryption, s.codec, case when s.codec & 4 <> 0 then substring(s.body from 1 for 9) end, octet_length(s.body)
from lockstep.scheduled s join lockstep.queue q on q.id = s.queue_id
where s.id > $1::bigint order by s.id limit $2
