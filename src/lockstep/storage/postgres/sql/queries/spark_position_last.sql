-- What a stream had read when it last published its position, and whether it may go on from there (accept_position).
select p.read_base::text, p.read_upto::text, p.read_segment, p.accepted_at is not null
from lockstep.spark_position p where p.stream_id = $1 order by p.queue_id limit 1
