-- Recurring messages by name, to be re-encrypted.
select 'recurring message' as what, c.name as id, c.codec, c.queue, c.partition_name, c.body
from lockstep.cron c where c.name = any ($1::text[]) order by c.name for no key update
