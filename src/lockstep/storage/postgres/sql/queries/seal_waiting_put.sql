-- Replaces the body of a scheduled message.
update lockstep.scheduled s set codec = 7, body = $2 where s.id = $1 and s.codec = $3::smallint
