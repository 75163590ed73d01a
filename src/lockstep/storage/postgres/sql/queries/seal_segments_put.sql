-- Replaces the body of a segment ($1), if it is still stored as it was read ($3).
update lockstep.segment s
set codec = 7, body = $2, payloads = null, transaction_ids = null, trace_ids = null, kinds = null, refs = null,
    encodings = null, headers = null, producer_subs = null
where s.id = $1 and s.codec = $3::smallint
