-- Runs of stored messages of all queues of a namespace and/or task after a place (partition id, seq), in that order,
-- like message_runs for one queue. Visits the partitions of all queues.
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
cross join lateral lockstep.runs_after(p.id, case when p.id > $3 then 0 else $4::bigint end, $5::timestamptz, $6::timestamptz, $7) r
limit $7
