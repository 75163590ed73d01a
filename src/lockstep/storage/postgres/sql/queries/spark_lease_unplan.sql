-- Reverts the planning of leases ($2) of a stream ($1).
update lockstep.spark_lease l set planned_at = null where l.stream = $1 and l.lease_id = any ($2::uuid[])
