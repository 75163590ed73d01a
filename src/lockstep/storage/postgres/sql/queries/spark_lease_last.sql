-- The last ordinal that a stream has leased; 0 if it has leased nothing.
select coalesce(max(l.ordinal), 0) from lockstep.spark_lease l where l.stream = $1
