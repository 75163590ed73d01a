-- Which record of a spool was set aside last: whoever lost the answer to that asks.
alter table lockstep.spool add set_aside_from bigint;

drop function if exists lockstep.drain_spool(uuid, bigint, bigint, timestamptz);
