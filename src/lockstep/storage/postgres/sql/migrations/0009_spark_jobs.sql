-- What the Spark jobs keep: the files of archives, and statistics by window.

-- A batch of messages that a job wrote to an archive, which is named by its location. The id rises with the time at which
-- a batch began, so that it orders what several queries wrote. Not committed: the files are there or not, and nobody
-- reads them.
create table lockstep.archive_batch (
    id bigint generated always as identity primary key,
    archive text collate "C" not null,
    query text collate "C" not null,
    batch bigint not null,
    begun_at timestamptz not null default clock_timestamp(),
    committed_at timestamptz,
    messages bigint not null default 0,
    unique (archive, query, batch)
);
create index archive_batch_open on lockstep.archive_batch (archive, id) where committed_at is null;

-- path is within the archive. first_at and last_at are when its first and last message were created.
create table lockstep.archive_file (
    batch_id bigint not null references lockstep.archive_batch (id) on delete cascade,
    path text collate "C" not null,
    queue text collate "C" not null,
    day date not null,
    messages bigint not null,
    bytes bigint not null,
    first_at timestamptz not null,
    last_at timestamptz not null,
    primary key (batch_id, path)
);
create index archive_file_queue on lockstep.archive_file (queue, first_at);

-- How a queue (group_name '') or a group was doing within a window. A measure is null where nothing is known of it.
create table lockstep.stat_window (
    queue text collate "C" not null,
    group_name text collate "C" not null,
    window_seconds int not null check (window_seconds > 0),
    window_start timestamptz not null,
    pushed bigint,
    completed bigint,
    dead bigint,
    pending bigint,
    lag_seconds double precision,
    attempts_max int,
    latency_samples bigint,
    latency_seconds_p50 double precision,
    latency_seconds_p95 double precision,
    latency_seconds_max double precision,
    trace_samples bigint,
    trace_seconds_p50 double precision,
    trace_seconds_p95 double precision,
    trace_seconds_max double precision,
    computed_at timestamptz not null,
    primary key (queue, group_name, window_seconds, window_start)
);
create index stat_window_start on lockstep.stat_window (window_seconds, window_start);

-- Messages that are restored from an archive keep their ids, and come in parts: several segments may then have the same
-- UUID. What is stored of them in one partition never overlaps.
drop index lockstep.segment_uuid;
create index segment_uuid on lockstep.segment (uuid);
