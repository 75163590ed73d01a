select c.name, c.queue, c.partition_name as partition, c.expression, c.timezone, c.catch_up, c.enabled, c.codec, c.body,
       c.created_at, c.next_at, c.last_at
from lockstep.cron c
-- Bounds that are always present, so that every plan starts at the name; no name is longer or beyond these.
where c.name >= coalesce($1::text, $2::text, '') and c.name <= coalesce($1, repeat(chr(1114111), 256))
  and c.name > coalesce(case when $1 is null then $2 end, '')
order by c.name limit $3
