-- How many messages steps have read of each queue, and how many of those are in a sample already. A step has no cursor whose
-- place would tell.
create table lockstep.pipeline_read (
    pipeline text collate "C" not null,
    step text collate "C" not null,
    queue text collate "C" not null,
    messages bigint not null default 0,
    sampled bigint not null default 0,
    primary key (pipeline, step, queue)
) with (fillfactor = 60);

drop function if exists lockstep.pipeline_batch(text, text, bigint, bigint, bigint, bigint, timestamptz);
