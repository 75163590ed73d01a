-- A dead letter whose copy was completed in the dead queue is not redriven with others, also not once retention has removed
-- the copy.
alter table lockstep.dead_letter add column copy_done boolean not null default false;
create index dead_letter_copy on lockstep.dead_letter (copy_partition_id, copy_seq) where copy_seq is not null;

drop function if exists lockstep.take_copies(bigint[], bigint[], uuid[], bigint[], timestamptz);
