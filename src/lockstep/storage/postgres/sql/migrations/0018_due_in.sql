-- What said whether something is pending says when it will be, under another name.
drop function if exists lockstep.has_pending(int[], bigint[], timestamptz);
