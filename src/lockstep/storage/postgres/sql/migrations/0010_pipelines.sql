-- What the steps of Spark pipelines have done. How far a step is stands in spark_position, and which of its batches is
-- written in spark_batch; this is for people, who want to know how it is doing.

create table lockstep.pipeline_step (
    pipeline text collate "C" not null,
    step text collate "C" not null,
    sources text[] not null,
    sinks text[] not null,
    group_name text collate "C",  -- in lease mode: the group that it shares
    query_id text collate "C" not null,
    started_at timestamptz not null,
    seen_at timestamptz not null,
    stopped_at timestamptz,
    error text,
    batch_id bigint,  -- the last one that was committed, when, and how many messages it wrote
    committed_at timestamptz,
    batch_pushed bigint not null default 0,
    batch_rejected bigint not null default 0,
    pushed bigint not null default 0,
    rejected bigint not null default 0,
    rows_per_second double precision,
    primary key (pipeline, step)
) with (fillfactor = 60);
