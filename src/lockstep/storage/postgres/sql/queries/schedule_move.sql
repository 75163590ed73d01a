-- A new due time: the given one, or the given number of seconds from now.
update lockstep.scheduled s
set due_at = coalesce($4::timestamptz, coalesce($6::timestamptz, clock_timestamp()) + make_interval(secs => $5::double precision))
from lockstep.queue q
where q.id = s.queue_id and s.id = lockstep.scheduled_id($1::bigint, $2::text, $3::text)
returning s.id, q.name, s.partition_name, s.due_at, s.created_at, s.key, s.codec, s.body,
          s.queue_id, q.encryption and s.id > q.waiting_sealed_after as must_be_sealed
