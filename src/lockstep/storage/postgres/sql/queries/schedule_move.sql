-- A new due time: the given one, or so many seconds from now.
update lockstep.scheduled s
set due_at = coalesce($4::timestamptz, coalesce($6::timestamptz, clock_timestamp()) + make_interval(secs => $5::double precision))
from lockstep.queue q
where q.id = s.queue_id and s.id = lockstep.scheduled_id($1::bigint, $2::text, $3::text)
returning s.id, q.name, s.partition_name, s.due_at, s.created_at, s.key, s.codec, s.body
