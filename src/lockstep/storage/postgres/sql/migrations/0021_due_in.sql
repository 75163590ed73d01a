-- What said whether something is pending says when it will be, under another name.
drop function if exists lockstep.has_pending(int[], bigint[], timestamptz);

-- A push from SQL may notify, and so has one more parameter.
drop function if exists lockstep.push(text, text, jsonb, text, uuid, text, text, jsonb);
