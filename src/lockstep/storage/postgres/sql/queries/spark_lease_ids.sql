-- The leases of a stream ($1) after an ordinal ($2) that are not acked: those that were planned ($3: true), that were not (false),
-- or all (null).
select l.lease_id from lockstep.spark_lease l
where l.stream = $1 and l.ordinal > $2::bigint and l.acked_at is null
  and ($3::boolean is null or (l.planned_at is not null) = $3::boolean)
order by l.ordinal
