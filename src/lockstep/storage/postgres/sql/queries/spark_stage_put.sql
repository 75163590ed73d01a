-- Stages a part: its messages as a segment of queue 0, and its description: attempt ($1) and part ($2), batch and task,
-- partitions, which messages have a transaction id or a trace, what it is encrypted for ($29-$31), and the keys that
-- order its rows. Arrays are passed as text.
with s as (
    insert into lockstep.segment (
        queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, body, payloads,
        transaction_ids, trace_ids, kinds, refs, encodings, headers, producer_subs
    )
    values (0, gen_random_uuid(), clock_timestamp(), $7::smallint, $8::int, '{}', '{}', '{}', $11::bytea, $12::bytea[],
            $13::text[], $14::text[]::uuid[], $15::text[], $16::text[], $17::text[], $18::bytea[], $19::text[])
    returning id
)
insert into lockstep.spark_stage (
    attempt, part, sink, batch_id, task, queue, codec, message_count, partitions, counts, segment_id,
    dedup_uuids, dedup_uuid_runs, dedup_uuid_offsets, dedup_texts, dedup_text_runs, dedup_text_offsets,
    traces, trace_runs, trace_offsets, segment_uuid, queue_id, partition_ids, order_keys
)
select $1::uuid, $2::int, $3::text, $4::bigint, $5::int, $6::text, $7::smallint, $8::int, $9::text::text[], $10::text::int[], s.id,
       $20::text::uuid[], $21::text::int[], $22::text::int[], $23::text::text[], $24::text::int[], $25::text::int[],
       $26::text::uuid[], $27::text::int[], $28::text::int[], $29::uuid, $30::int, $31::text::bigint[], $32::bytea
from s
