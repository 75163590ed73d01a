-- Runs of stored messages of all queues of a namespace and/or task after a place (partition id, seq), in that order; as
-- message_runs has them for one queue. It goes over the partitions of all queues.
select p.id, p.name, r.first_seq, r.last_seq, r.segment_id, r.ordinal, r.created_at, p.queue
from (
    select p.id, p.name, q.name as queue
    from lockstep.partition p
    cross join lateral (
        select q.name from lockstep.queue q
        where q.id = p.queue_id and ($1::text is null or q.namespace = $1) and ($2::text is null or q.task = $2) limit 1
    ) q
    where p.id >= $3
    order by p.id
) p
cross join lateral (
    select r.*, s.created_at from lockstep.run r join lockstep.segment s on s.id = r.segment_id
    where r.partition_id = p.id
      and (p.id > $3 or r.first_seq >= coalesce((
          select f.first_seq from lockstep.run f where f.partition_id = p.id and f.first_seq <= $4::bigint + 1 order by f.first_seq desc limit 1), 0))
      and (p.id > $3 or r.last_seq > $4)
      and ($5::timestamptz is null or s.created_at >= $5) and ($6::timestamptz is null or s.created_at < $6)
    order by r.first_seq limit $7
) r
limit $7
