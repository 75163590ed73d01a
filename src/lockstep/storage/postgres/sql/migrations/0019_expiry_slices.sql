-- It ends after so many messages, and says how many it looked at.
drop function if exists lockstep.expired_upto(bigint, bigint, lockstep.queue, timestamptz);
