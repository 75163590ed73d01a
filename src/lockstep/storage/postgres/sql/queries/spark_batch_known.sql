-- Whether a batch ($2) of a sink ($1) was committed.
select exists (select 1 from lockstep.spark_batch b where b.sink = $1 and b.batch_id >= $2::bigint)
