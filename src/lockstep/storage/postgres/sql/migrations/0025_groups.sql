-- A group starts, moves and goes at once; its cursors follow in slices (procedures/group.sql).

-- Where the group began, at begun_at: at the start of every partition, at its end, after what was created up to begins_at, or
-- before begins_seq. That is the place of every cursor it does not have yet. Without placed_upto it has all of them; otherwise
-- partitions up to that id were gone over, and segments down to sought_upto were searched for partitions that have something.
-- fenced: every partition without its cursor is committed. replaces: the ids that the group had before it was moved.
alter table lockstep.consumer_group
    add column begins text not null default 'start' check (begins in ('start', 'end', 'time', 'seq')),
    add column begins_at timestamptz,
    add column begins_seq bigint,
    add column begun_at timestamptz,
    add column placed_upto bigint,
    add column sought_upto bigint,
    add column fenced boolean not null default true,
    add column replaces int[] not null default '{}';
update lockstep.consumer_group set begun_at = created_at;
alter table lockstep.consumer_group alter column begun_at set not null;
create index consumer_group_unplaced on lockstep.consumer_group (queue_id) where placed_upto is not null;

-- Partitions that were held by somebody when their turn was to get a group's cursor.
create table lockstep.missing_cursor (
    group_id int not null,
    partition_id bigint not null,
    primary key (group_id, partition_id)
);

-- Groups that were deleted, or moved and so got a new id, while something under the old id is left. The cursors of
-- partitions up to removed_upto were gone over, in a round that is the last if it is final.
create table lockstep.deleted_group (
    id int primary key,
    queue_id int not null,
    deleted_at timestamptz not null,
    deleted_by xid8 not null default pg_current_xact_id(),
    removed_upto bigint not null default 0,
    final boolean not null default false
);
create index deleted_group_queue on lockstep.deleted_group (queue_id);

-- What took all partitions at once, or has other parameters now.
drop function if exists lockstep.subscribe(int, text, text, timestamptz, text, timestamptz);
drop function if exists lockstep.seek(int, bigint, text, timestamptz, bigint, timestamptz);
drop function if exists lockstep.delete_group(int, text, boolean);
drop function if exists lockstep.shared_seek(int, int, bigint, boolean, timestamptz);
drop function if exists lockstep.lock_places(int, bigint);
drop function if exists lockstep.wake(int, bigint[], timestamptz);
