-- Clearing, deleting and verifying in slices, each a transaction of its own.

-- A queue that was deleted, as long as something of it is left. Its row in lockstep.queue is gone, and with that it is found
-- by nobody; its partitions still have its id.
create table lockstep.deleted_queue (
    id int primary key,
    name text collate "C" not null,
    deleted_at timestamptz not null
);

-- What took a whole queue at once; the procedures bring what takes its place.
drop function if exists lockstep.delete_queue(text);
drop function if exists lockstep.clear(int, bigint, boolean, timestamptz);
drop function if exists lockstep.remove_all(int);
drop function if exists lockstep.remove_scheduled(int, text);
drop function if exists lockstep.remove_trace_events_of_queue(int);
drop function if exists lockstep.pass_removed(bigint[], lockstep.queue, timestamptz);
