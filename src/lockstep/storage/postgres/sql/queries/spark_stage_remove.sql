-- Removes what attempts ($1) have staged: everything, or one part ($2). A trigger removes the segments.
delete from lockstep.spark_stage p where p.attempt = any ($1::uuid[]) and ($2::int is null or p.part = $2::int)
