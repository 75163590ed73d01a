-- A payload as text: JSON as it is, opaque bytes as base64.
create or replace function lockstep.as_text(_payload bytea, _encoding text) returns text language plpgsql immutable as $$
begin
    return case when _encoding is null then convert_from(_payload, 'UTF8') else encode(_payload, 'base64') end;
exception when character_not_in_repertoire or untranslatable_character then
    return encode(_payload, 'base64');
end $$;

-- Stored messages for readers in SQL. The fields of a message are there if its segment is plain (a small push, a
-- push from SQL, or a queue with compression none); of a packed one only its place is known here.
create or replace view lockstep.messages as
select q.name as queue, p.name as partition, r.first_seq + o.o as seq,
       lockstep.message_id(s.uuid, (r.ordinal + o.o)::int) as message_id, s.created_at, s.codec = 0 as readable,
       lockstep.as_text(s.payloads[r.ordinal + o.o + 1], s.encodings[r.ordinal + o.o + 1]) as payload,
       s.transaction_ids[r.ordinal + o.o + 1] as transaction_id, s.trace_ids[r.ordinal + o.o + 1] as trace_id,
       s.kinds[r.ordinal + o.o + 1] as kind, s.refs[r.ordinal + o.o + 1] as reference,
       s.encodings[r.ordinal + o.o + 1] as encoding, convert_from(s.headers[r.ordinal + o.o + 1], 'UTF8')::jsonb as headers,
       s.producer_subs[r.ordinal + o.o + 1] as producer_sub
from lockstep.run r
join lockstep.segment s on s.id = r.segment_id
join lockstep.partition p on p.id = r.partition_id
join lockstep.queue q on q.id = p.queue_id
cross join lateral generate_series(0, (r.last_seq - r.first_seq)::int) o (o);
