-- Bundles of operations from one on, oldest first; of a status, those that may have an operation of it.
select o.serial, o.uuid, o.kind, o.priority, o.request_count, o.pending, o.results, o.retries, o.error, o.worker, o.created_at, o.due_at, o.completed_at
from lockstep.operation o
where o.serial >= $2::bigint
  and case $1::text when 'pending' then o.pending when 'failed' then o.failed_count > 0 when 'done' then o.results is not null else true end
order by o.serial
limit $3::int
