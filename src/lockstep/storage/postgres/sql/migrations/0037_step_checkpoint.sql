-- Where a step keeps how far it is: the checkpoint that it last ran with, as people find it.
alter table lockstep.pipeline_step add column checkpoint text;

drop function if exists lockstep.pipeline_begin(text, text, text[], text[], text, text, timestamptz);
