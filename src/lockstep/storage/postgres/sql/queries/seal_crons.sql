-- How recurring messages are stored, like seal_segments for segments: all of them, because they are few. A queue that
-- does not exist counts as not encrypted.
select c.name, coalesce(q.encryption, false), c.codec, case when c.codec & 4 <> 0 then substring(c.body from 1 for 9) end, octet_length(c.body)
from lockstep.cron c left join lockstep.queue q on q.name = c.queue
where $1::bigint is not null and $2::int is not null order by c.name
