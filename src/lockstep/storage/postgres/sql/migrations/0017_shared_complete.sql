-- It counts the moves of ordered groups, too, and so has other parameters.
drop function if exists lockstep.shared_complete(uuid[], timestamptz);
