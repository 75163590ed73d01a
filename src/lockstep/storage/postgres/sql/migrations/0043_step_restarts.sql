-- How often a step was started again since it began to run, why the last time, and since when it waits to be.
alter table lockstep.pipeline_step
    add column restarts bigint not null default 0,
    add column restart_error text,
    add column failed_at timestamptz;

drop function if exists lockstep.pipeline_begin(text, text, text[], text[], text, text, text, timestamptz);
