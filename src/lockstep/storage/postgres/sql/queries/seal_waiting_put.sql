-- Exchanges the body of a waiting message.
update lockstep.scheduled s set codec = 7, body = $2 where s.id = $1 and s.codec = $3::smallint
