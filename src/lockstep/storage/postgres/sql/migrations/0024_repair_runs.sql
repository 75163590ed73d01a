-- It is told whether the runs of the queue are sound.
drop function if exists lockstep.repair(int, timestamptz);
