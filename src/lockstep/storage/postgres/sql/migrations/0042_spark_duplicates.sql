-- The keys by which a part's rows are ordered within their partitions, row by row: 8 bytes for each column of orderBy.
alter table lockstep.spark_stage add column order_keys bytea;

-- What a sink has pushed, and how many rows it left out because their transaction ids were known.
alter table lockstep.spark_batch
    add column messages_total bigint not null default 0,
    add column duplicates_total bigint not null default 0;

-- The same for a step.
alter table lockstep.pipeline_step
    add column batch_duplicates bigint not null default 0,
    add column duplicates bigint not null default 0;

drop function if exists lockstep.pipeline_batch(text, text, bigint, bigint, bigint, timestamptz);
