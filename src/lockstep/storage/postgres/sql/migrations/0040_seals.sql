-- What is encrypted is bound to where it is: codec 7. Up to sealed_after, and for messages that wait up to
-- waiting_sealed_after, a queue has what was stored before that, or before the queue was encrypted: codec 0, 1 or 3.
alter table lockstep.queue
    add column sealed_after bigint not null default 0,
    add column waiting_sealed_after bigint not null default 0;
update lockstep.queue q
set sealed_after = coalesce((select s.id from lockstep.segment s where s.queue_id = q.id order by s.id desc limit 1), 0),
    waiting_sealed_after = coalesce((select max(s.id) from lockstep.scheduled s where s.queue_id = q.id), 0)
where q.encryption;

-- What a part is encrypted for: the id that its segment is going to have, its queue and its partitions, 0 where there are none.
alter table lockstep.spark_stage
    add column segment_uuid uuid,
    add column queue_id int,
    add column partition_ids bigint[];

drop function if exists lockstep.take_due(int, int, bigint, timestamptz);
