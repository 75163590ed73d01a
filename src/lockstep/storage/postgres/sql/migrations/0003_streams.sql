-- Trace events, and the queries and state of stream processing.

-- What consumers told about messages. Lives as long as its message.
create table lockstep.trace_event (
    id bigint generated always as identity primary key,
    partition_id bigint not null,
    seq bigint not null,
    transaction_id text not null,
    event_type text not null,
    group_name text,
    worker text,
    names text[] not null,
    data json not null,
    created_at timestamptz not null
);
create index trace_event_message on lockstep.trace_event (partition_id, seq, id);

-- What trace events are found by.
create table lockstep.trace_name (
    name text collate "C" not null,
    event_id bigint not null,
    partition_id bigint not null,
    seq bigint not null,
    created_at timestamptz not null,
    primary key (name, event_id)
);
create index trace_name_message on lockstep.trace_name (partition_id, seq);

-- A client's stream processing, by name. Its queues are named and need not exist.
create table lockstep.stream_query (
    id bigint generated always as identity primary key,
    name text collate "C" not null unique,
    source_queue text collate "C" not null,
    sink_queue text collate "C",
    config_hash text not null,
    created_at timestamptz not null,
    configured_at timestamptz not null
);

-- Its state: JSON by key, per partition. window_end is the value's number windowEnd, by which the ripe ones are found.
create table lockstep.stream_state (
    query_id bigint not null,
    partition_id bigint not null,
    key text collate "C" not null,
    value json not null,
    window_end double precision,
    updated_at timestamptz not null,
    primary key (query_id, partition_id, key)
);
create index stream_state_ripe on lockstep.stream_state (query_id, partition_id, window_end) where window_end is not null;
create index stream_state_partition on lockstep.stream_state (partition_id);
