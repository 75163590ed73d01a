-- The last ordinal that a stream has leased; 0 if there is none.
select coalesce(max(l.ordinal), 0) from lockstep.spark_lease l where l.stream = $1
