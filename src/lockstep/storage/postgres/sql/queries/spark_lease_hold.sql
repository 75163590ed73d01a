-- The leases of a stream that were planned and not acked, locked for the transaction.
select l.lease_id from lockstep.spark_lease l
where l.stream = $1 and l.acked_at is null and l.planned_at is not null order by l.ordinal for no key update
