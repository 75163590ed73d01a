-- Queues with their sums. Lag and stored messages come from seqs; no message is counted.
select q.id, q.name, q.namespace, q.task, q.created_at, p.partitions, p.stored, g.pending, g.processing, d.dead_letters,
       q.lease_seconds, q.retry_limit, q.retry_delay_ms, q.retry_backoff, q.retry_delay_ms_max, q.on_exhausted, q.max_size,
       q.ttl_seconds, q.priority, q.delay_seconds, q.window_seconds, q.retention_enabled, q.retention_seconds,
       q.completed_retention_seconds, q.max_wait_seconds, q.encryption, q.compression, q.dead_letter_queue, q.dlq_after_max_retries
from lockstep.queue q
cross join lateral (
    select count(*) as partitions, coalesce(sum(lockstep.lag(p.id, lockstep.start_of(p.id))), 0)::bigint as stored
    from lockstep.partition p where p.queue_id = q.id
) p
cross join lateral (
    select max(t.lag)::bigint as pending, coalesce(sum(t.processing), 0)::bigint as processing from (
        select coalesce(sum(lockstep.lag(c.partition_id, c.acked)), 0) as lag,
               sum(case when c.lease_id is not null and c.due_at > coalesce($6::timestamptz, clock_timestamp())
                        then lockstep.stored_between(c.partition_id, c.acked, c.lease_to) end) as processing
        from lockstep.consumer_group g
        left join lockstep.partition p on p.queue_id = g.queue_id
        left join lockstep.cursor c on c.partition_id = p.id and c.group_id = g.id
        where g.queue_id = q.id group by g.id
    ) t
) g
cross join lateral (select count(*) as dead_letters from lockstep.dead_letter d where d.queue_id = q.id) d
where ($1::text is null or q.name = $1) and ($2::text is null or q.namespace = $2) and ($3::text is null or q.task = $3)
  and ($4::text is null or q.name > $4)
order by q.name limit $5
