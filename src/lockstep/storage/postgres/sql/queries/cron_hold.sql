-- Locks a recurring message, to change it; waits if it is just being pushed.
select c.name, c.queue, c.partition_name as partition, c.expression, c.timezone, c.catch_up, c.enabled, c.codec, c.body,
       c.created_at, c.next_at, c.last_at
from lockstep.cron c where c.name = $1 for update
