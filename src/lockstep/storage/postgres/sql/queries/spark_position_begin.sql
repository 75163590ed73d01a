-- When a stream first published its position.
select min(p.created_at) from lockstep.spark_position p where p.stream_id = $1
