-- A page of messages walks a bounded number of runs, whatever their period (message_runs).
drop function if exists lockstep.runs_after(bigint, bigint, timestamptz, timestamptz, bigint);
