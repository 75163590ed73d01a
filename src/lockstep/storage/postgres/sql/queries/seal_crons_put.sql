-- Replaces the body of a recurring message.
update lockstep.cron c set codec = 7, body = $2 where c.name = $1 and c.codec = $3::smallint
