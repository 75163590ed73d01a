-- The names of partitions by id.
select p.id, p.name from lockstep.partition p where p.id = any ($1::bigint[])
