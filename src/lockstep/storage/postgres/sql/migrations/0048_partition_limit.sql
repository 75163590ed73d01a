-- It takes how many partitions a queue may have, and what its caller has counted of them.
drop function if exists lockstep.resolve(text, text[], timestamptz);
