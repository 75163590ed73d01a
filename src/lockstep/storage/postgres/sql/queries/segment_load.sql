-- Segments by id, with their messages.
select s.id, s.uuid, s.created_at, s.codec, s.body,
       s.payloads, s.transaction_ids, s.trace_ids, s.kinds, s.refs, s.encodings, s.headers, s.producer_subs, s.expires_at
from lockstep.segment s where s.id = any ($1::bigint[])
