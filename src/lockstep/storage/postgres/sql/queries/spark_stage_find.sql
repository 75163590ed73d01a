-- A part ($2) of an attempt ($1) with its messages.
select p.sink, p.batch_id, p.task, p.queue, p.codec, p.partitions, p.counts, s.body,
       s.payloads, s.transaction_ids, s.trace_ids, s.kinds, s.refs, s.encodings, s.headers, s.producer_subs,
       p.dedup_uuid_runs, p.dedup_uuid_offsets, p.dedup_text_runs, p.dedup_text_offsets,
       p.segment_uuid, p.queue_id, p.partition_ids
from lockstep.spark_stage p join lockstep.segment s on s.id = p.segment_id
where p.attempt = $1::uuid and p.part = $2::int
