-- Segments by id with everything that was ever in them, in the order of their ids.
select s.id, s.queue_id, uuid_send(s.uuid), (extract(epoch from s.created_at) * 1000000)::bigint,
       s.codec, s.message_count, s.body, s.partition_ids, s.first_seqs, s.counts, s.expires_at,
       s.payloads, s.transaction_ids, s.trace_ids::text[], s.kinds, s.refs, s.encodings, s.headers, s.producer_subs,
       (select q.encryption and s.id > q.sealed_after from lockstep.queue q where q.id = s.queue_id) as must_be_sealed
from lockstep.segment s
where s.id = any ($1::bigint[]) order by s.id
