-- How many operations of each kind wait, from the sums that every change updates, since when the first bundle waits,
-- and how many operations have failed. The comparison is that of operation_pending.
select k.kind, s.operations, s.messages, s.bytes, s.failed, (
    select o.created_at from lockstep.operation o
    where o.pending and (o.kind, o.priority, o.serial) >= (k.kind, k.priority, 0)
      and (o.kind, o.priority, o.serial) <= (k.kind, k.priority, 9223372036854775807)
    order by o.kind, o.priority, o.serial limit 1
)
from unnest($1::text[], $2::smallint[]) k (kind, priority)
cross join lateral (
    select coalesce(sum(s.operations), 0)::bigint as operations, coalesce(sum(s.messages), 0)::bigint as messages,
           coalesce(sum(s.bytes), 0)::bigint as bytes, coalesce(sum(s.failed), 0)::bigint as failed
    from lockstep.operation_sum s where s.kind = k.kind
) s
