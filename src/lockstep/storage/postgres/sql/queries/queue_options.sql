-- A queue's options, by its name.
select q.lease_seconds, q.retry_limit, q.retry_delay_ms, q.retry_backoff, q.retry_delay_ms_max, q.on_exhausted, q.max_size,
       q.ttl_seconds, q.priority, q.delay_seconds, q.window_seconds, q.retention_enabled, q.retention_seconds,
       q.completed_retention_seconds, q.max_wait_seconds, q.encryption, q.compression, q.dead_letter_queue, q.dlq_after_max_retries,
       q.expire_seconds, q.on_expired, (select d.name from lockstep.queue d where d.id = q.dead_queue_id), q.partitions, q.group_mode
from lockstep.queue q where q.name = $1
