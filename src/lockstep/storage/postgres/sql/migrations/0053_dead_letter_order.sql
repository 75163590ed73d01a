-- Redrives and purges of a queue go by id, and do not look at the dead letters of other queues.
create index dead_letter_order on lockstep.dead_letter (queue_id, id);
