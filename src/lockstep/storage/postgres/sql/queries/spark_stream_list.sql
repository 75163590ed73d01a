-- The Spark streams on each queue, and how many messages they still have to read. The cost grows with that number.
select p.stream_id as id, p.name, q.name as queue, coalesce(l.messages, 0) as lag, l.oldest_at, p.created_at, p.updated_at, p.held_until
from lockstep.spark_position p
join lockstep.queue q on q.id = p.queue_id
cross join lateral (
    select sum(s.message_count)::bigint as messages, min(s.created_at) as oldest_at
    from lockstep.segment s
    where s.queue_id = p.queue_id and s.txid >= pg_snapshot_xmin(p.read_base)
      and not lockstep.is_read(p.read_base, p.read_upto, p.read_segment, s.txid, s.id)
) l
where $1::int is null or p.queue_id = $1
order by q.name, p.name, p.stream_id
