-- A bundle of operations, and how many operations of its kind will be applied before it; null if they are in more than
-- $2 bundles. The comparison is that of operation_pending.
select o.serial, o.uuid, o.kind, o.priority, o.request_count, o.pending, o.results, o.retries, o.error, o.worker, o.created_at, o.due_at, o.completed_at,
       o.aims,
       case when o.pending then (
           select case when count(*) <= $2 then coalesce(sum(b.request_count), 0)::int end
           from (
               select b.request_count from lockstep.operation b
               where b.pending and (b.kind, b.priority, b.serial) >= (o.kind, o.priority, 0)
                 and (b.kind, b.priority, b.serial) < (o.kind, o.priority, o.serial)
               order by b.kind, b.priority, b.serial limit $2::int + 1
           ) b
       ) end as before
from lockstep.operation o
where o.uuid = $1::uuid
