-- Whoever promotes it at this moment holds its row: then it is gone when we have it, and nothing is deleted.
delete from lockstep.scheduled s where s.id = lockstep.scheduled_id($1::bigint, $2::text, $3::text) returning s.id
