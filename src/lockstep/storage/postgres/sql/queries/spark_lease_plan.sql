-- Records that the ordinals of a stream ($1) after one ($2) and up to another ($3) were planned: from now on a sink may
-- ack them.
update lockstep.spark_lease l set planned_at = coalesce($4::timestamptz, clock_timestamp())
where l.stream = $1 and l.ordinal > $2::bigint and l.ordinal <= $3::bigint and l.acked_at is null
