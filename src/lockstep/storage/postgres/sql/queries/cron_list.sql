select c.name, c.queue, c.partition_name, c.expression, c.timezone, c.catch_up, c.enabled, c.codec, c.body,
       c.created_at, c.next_at, c.last_at
from lockstep.cron c
where ($1::text is null or c.name = $1) and ($2::text is null or c.name > $2)
order by c.name limit $3
