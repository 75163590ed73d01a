-- Scheduled messages by id, to be re-encrypted. Skips messages that are being promoted or cancelled, because they are
-- about to go.
select 'schedule' as what, s.id, s.codec, s.queue_id, s.partition_name, s.key, q.encryption and s.id > q.waiting_sealed_after as must_be_sealed, s.body
from lockstep.scheduled s join lockstep.queue q on q.id = s.queue_id
where s.id = any ($1::bigint[]) order by s.id for update of s skip locked
