-- The parts of attempts ($1) in the order in which they are pushed, with the keys of their rows and their stored size;
-- locked for the transaction.
select p.attempt, p.part, p.task, p.queue, p.partitions, p.counts, p.order_keys,
       (select coalesce(octet_length(s.body), pg_column_size(s.payloads)) from lockstep.segment s where s.id = p.segment_id)
from lockstep.spark_stage p where p.attempt = any ($1::uuid[]) order by p.task, p.attempt, p.part for update of p
