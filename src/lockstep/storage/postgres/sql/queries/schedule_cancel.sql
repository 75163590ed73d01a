-- A promotion in progress holds the row: it is gone once we have the lock, and nothing is deleted.
delete from lockstep.scheduled s where s.id = lockstep.scheduled_id($1::bigint, $2::text, $3::text) returning s.id
