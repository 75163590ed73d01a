-- The index over the ids of a queue's partitions cannot serve a look-up by name.
--
-- Both indexes of the table begin with the queue. Where the statistics say that a queue has one partition, both cost the
-- planner the same to find a name, and through this one a look-up reads all partitions of the queue: 5,000 new partitions
-- took 9 s beside 30,000 others. The condition holds for every row. A query that walks a queue's partitions by their ids
-- has a condition on the id, from which PostgreSQL concludes it; a look-up by name has none. See docs/decisions/0006.
drop index lockstep.partition_queue;
create index partition_queue on lockstep.partition (queue_id, id) where id is not null;
