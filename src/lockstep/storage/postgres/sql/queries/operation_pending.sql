-- Bundles that wait, of these kinds with their priorities, from one on, oldest first, and how many operations they have; only
-- those that push to a queue.
select o.serial, o.request_count from unnest($4::text[], $5::smallint[]) k (kind, priority)
cross join lateral (
    select o.serial, o.request_count from lockstep.operation o
    where o.pending and o.kind = k.kind and o.priority = k.priority and o.serial >= $1::bigint
      and ($2::text is null or $2::text = any (o.queues))
    order by o.serial limit $3::int
) o
order by o.serial limit $3::int
