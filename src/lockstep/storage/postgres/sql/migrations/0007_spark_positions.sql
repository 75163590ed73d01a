-- How far Spark's streams are. Queues that no stream reads pay an index probe when something is removed from them, and
-- nothing else does.

-- A position: all that is visible in base, and what else is visible in upto, up to the segment. `committed` is what no
-- checkpoint asks for any more: retention may take it. `read` is what was processed, as far as the stream has told.
create table lockstep.spark_position (
    stream_id text collate "C" not null,
    queue_id int not null,
    name text collate "C" not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    held_until timestamptz not null,
    committed_base pg_snapshot not null,
    committed_upto pg_snapshot not null,
    committed_segment bigint not null,
    read_base pg_snapshot not null,
    read_upto pg_snapshot not null,
    read_segment bigint not null,
    primary key (stream_id, queue_id)
) with (fillfactor = 60);
create index spark_position_queue on lockstep.spark_position (queue_id);

-- What was removed from a queue before all its streams had read it, so that they can say what they missed.
create table lockstep.spark_removal (
    queue_id int not null,
    segment_id bigint not null,
    partition_id bigint not null,
    txid xid8 not null,
    messages bigint not null,
    removed_at timestamptz not null,
    primary key (queue_id, segment_id, partition_id)
);
