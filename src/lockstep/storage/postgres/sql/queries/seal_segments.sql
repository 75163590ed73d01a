-- How the segments after a given one ($1) are stored: whether their queue is encrypted, and the first bytes of
-- encrypted bodies.
select s.id, q.encryption, s.codec, case when s.codec & 4 <> 0 then substring(s.body from 1 for 9) end,
       coalesce(octet_length(s.body), 0)
from lockstep.segment s join lockstep.queue q on q.id = s.queue_id
where s.id > $1::bigint order by s.id limit $2
