-- The position of the stream with a name ($1): what it has processed, and the database in which this is meaningful.
select p.read_base::text, p.read_upto::text, p.read_segment,
       (select c.system_identifier from pg_control_system() c) || '/'
           || (select d.oid from pg_database d where d.datname = current_database())
from lockstep.spark_position p where p.name = $1 order by p.created_at desc, p.queue_id limit 1
