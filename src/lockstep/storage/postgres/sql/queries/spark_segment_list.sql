-- The segments of some queues ($1), all or after an id ($2), that lie between two snapshots: their transactions
-- finished between the two ($3), or began after the first one (from $4 to before $5) and are not in progress in the
-- second one ($6). Optionally only segments of some partitions ($7), created from ($8) or before ($9) a time, or with
-- messages of a trace ($10), including the message with that id: a trace without an id takes the id of its first
-- message. Four columns as arrays of bytes: ids, messages, stored bytes and transactions.
--
-- For custom plans: where a filter is null the planner drops it.
select coalesce(string_agg(int8send(s.id), ''::bytea order by s.id), ''::bytea),
       coalesce(string_agg(int4send(s.message_count), ''::bytea order by s.id), ''::bytea),
       coalesce(string_agg(int4send(z.stored), ''::bytea order by s.id), ''::bytea),
       coalesce(string_agg(xid8send(s.txid), ''::bytea order by s.id), ''::bytea)
from (
    select f.* from lockstep.segment f
    where $10::uuid is null and f.queue_id = any ($1::int[]) and f.txid = any ($3::xid8[])
    union all
    select f.* from lockstep.segment f
    where $10::uuid is null and f.queue_id = any ($1::int[]) and f.txid >= $4::xid8 and f.txid < $5::xid8 and f.txid <> all ($6::xid8[])
    union all
    -- Those of a trace one by one, whatever the planner knows about their queue.
    select f.*
    from (
        select r.segment_id from lockstep.trace_index t
        cross join lateral lockstep.runs_between(t.partition_id, t.seq - 1, t.seq) r
        where t.trace_id = $10::uuid
        union
        select first.id from lockstep.segment first where first.uuid = (left($10::text, 32) || '0000')::uuid
    ) t
    cross join lateral (select f.* from lockstep.segment f where f.id = t.segment_id offset 0) f
    where f.queue_id = any ($1::int[])
      and (f.txid = any ($3::xid8[]) or (f.txid >= $4::xid8 and f.txid < $5::xid8 and f.txid <> all ($6::xid8[])))
) s
cross join lateral (select coalesce(octet_length(s.body), pg_column_size(s.payloads)) as stored) z
where ($2::bigint is null or s.id > $2::bigint)
  and ($7::bigint[] is null or s.partition_ids && $7::bigint[])
  and ($8::timestamptz is null or s.created_at >= $8::timestamptz)
  and ($9::timestamptz is null or s.created_at < $9::timestamptz)
