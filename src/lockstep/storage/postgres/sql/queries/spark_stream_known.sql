-- Whether the database knows a stream of this name, in either mode.
select exists (select 1 from lockstep.spark_lease l where l.stream = $1)
    or exists (select 1 from lockstep.spark_position p where p.name = $1)
