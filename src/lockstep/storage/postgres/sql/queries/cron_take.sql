-- Locks a recurring message that is due. Skipped if another session holds it; a later session finds the next time.
select c.name, c.queue, c.partition_name as partition, c.expression, c.timezone, c.catch_up, c.enabled, c.codec, c.body,
       c.created_at, c.next_at, c.last_at
from lockstep.cron c where c.name = $1 and c.next_at <= $2 for update skip locked
