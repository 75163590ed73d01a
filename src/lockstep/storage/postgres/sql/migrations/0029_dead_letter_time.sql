-- For the newest dead letters of all queues.
create index dead_letter_time on lockstep.dead_letter (failed_at, id);
