-- A bundle of operations, and how many operations of its kind are to be applied before it.
select o.serial, o.uuid, o.kind, o.priority, o.request_count, o.pending, o.results, o.retries, o.error, o.worker, o.created_at, o.due_at, o.completed_at,
       o.aims,
       case when o.pending then (
           select coalesce(sum(b.request_count), 0)::int from lockstep.operation b
           where b.pending and b.kind = o.kind and b.priority = o.priority and b.serial < o.serial
       ) end
from lockstep.operation o
where o.uuid = $1::uuid
