-- Bundles of operations, oldest first.
select o.serial, o.uuid, o.kind, o.priority, o.request_count, o.pending, o.results, o.retries, o.error, o.worker, o.created_at, o.due_at, o.completed_at,
       o.aims
from unnest($1::bigint[]) t (serial)
cross join lateral (select o.* from lockstep.operation o where o.serial = t.serial limit 1) o
order by o.serial
