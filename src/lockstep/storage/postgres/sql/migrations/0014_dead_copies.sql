-- Where the copy of a dead letter is in the dead queue, so that both go when it is redriven. Null where there is none, and for
-- those that died before this was known.
alter table lockstep.dead_letter add column copy_partition_id bigint, add column copy_seq bigint;

-- Their parameters or answers have grown, which a function cannot do while it is there; the procedures make them anew.
drop function if exists lockstep.take_forwards();
drop function if exists lockstep.retry_message(bigint, text);
drop function if exists lockstep.take_dead(bigint[], bigint[], bigint[], bigint[], text[], timestamptz);
