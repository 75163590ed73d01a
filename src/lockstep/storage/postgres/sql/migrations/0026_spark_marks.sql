-- What tells a Spark stream that the database still has all that its checkpoint counts as read. A failover to an
-- asynchronous replica, or a restore, takes the last transactions away and gives their ids out again; it takes the marks
-- of those transactions away, too.

-- A mark is committed after all that is visible at an offset, and before Spark gets the offset. `ordinal` counts the marks
-- of a stream.
create table lockstep.spark_mark (
    stream_id text collate "C" not null,
    ordinal bigint not null,
    mark uuid not null,
    marked_at timestamptz not null,
    primary key (stream_id, ordinal)
);
create index spark_mark_age on lockstep.spark_mark (marked_at);

-- Somebody has allowed the stream to go on from here although its checkpoint is ahead.
alter table lockstep.spark_position add column accepted_at timestamptz;
