-- Records the end of the batch that a stream ($1) runs now.
update lockstep.spark_position p
set planned_base = $2::pg_snapshot, planned_upto = $3::pg_snapshot, planned_segment = $4::bigint
where p.stream_id = $1
