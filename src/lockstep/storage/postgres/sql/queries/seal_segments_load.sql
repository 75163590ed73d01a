-- Segments by id, to be re-encrypted; locked, so that no other walk does the same.
select 'segment' as what, s.id, s.uuid, s.codec, s.queue_id, s.partition_ids, s.counts,
       q.encryption and s.id > q.sealed_after as must_be_sealed, s.body,
       s.payloads, s.transaction_ids, s.trace_ids, s.kinds, s.refs, s.encodings, s.headers, s.producer_subs
from lockstep.segment s join lockstep.queue q on q.id = s.queue_id
where s.id = any ($1::bigint[]) order by s.id for no key update of s
