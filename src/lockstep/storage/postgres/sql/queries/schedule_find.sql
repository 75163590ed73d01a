-- One scheduled message: by its id, or by queue and key.
select s.id, q.name, s.partition_name, s.due_at, s.created_at, s.key, s.codec, s.body,
       s.queue_id, q.encryption and s.id > q.waiting_sealed_after as must_be_sealed
from lockstep.scheduled s join lockstep.queue q on q.id = s.queue_id
where s.id = lockstep.scheduled_id($1::bigint, $2::text, $3::text)
