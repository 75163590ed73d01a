-- What a step was when it last ran, so that a change is noticed when it runs again.
alter table lockstep.pipeline_step add column definition jsonb;

drop function if exists lockstep.pipeline_begin(text, text, text[], text[], text, text, text, bigint, timestamptz);
