-- Whether some queues ($1) have messages that a position ($2, $3, $4) counts as read.
select exists (
    select 1 from lockstep.segment s
    where s.queue_id = any ($1::int[]) and lockstep.is_read($2::pg_snapshot, $3::pg_snapshot, $4::bigint, s.txid, s.id)
)
