-- Runs of stored messages of all queues of a namespace and/or task after a place (partition id, seq), in that order; as
-- message_runs has them for one queue. It goes over the partitions of all queues, and one of another queue counts as one
-- without messages.
select w.id, w.name, w.first_seq, w.last_seq, case when w.wanted then w.segment_id end as segment_id, w.ordinal, w.created_at, w.looked, w.queue
from (
    select p.id, p.name, r.first_seq, r.last_seq, r.segment_id, r.ordinal, r.created_at, row_number() over () as looked, p.queue,
           coalesce(r.segment_id is not null and ($5::timestamptz is null or r.created_at >= $5) and ($6::timestamptz is null or r.created_at < $6), false) as wanted
    from (
        select p.id, p.name, q.name as queue, case when q.name is not null then p.id end as runs_of
        from lockstep.partition p
        left join lateral (
            select q.name from lockstep.queue q
            where q.id = p.queue_id and ($1::text is null or q.namespace = $1) and ($2::text is null or q.task = $2) limit 1
        ) q on true
        where p.id >= $3
        order by p.id
    ) p
    left join lateral lockstep.runs_after(p.runs_of, case when p.id > $3 then 0 else $4::bigint end, $8) r on true
    limit $8
) w
where w.wanted or w.looked = $8
limit $7
