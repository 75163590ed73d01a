-- The first segment of some queues ($1) created at a time ($2) or later. Scans all segments of the queues.
select min(s.id) from lockstep.segment s where s.queue_id = any ($1::int[]) and s.created_at >= $2::timestamptz
