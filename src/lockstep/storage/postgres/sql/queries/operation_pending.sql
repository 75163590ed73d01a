-- The same as operation_any, for waiting bundles of these kinds with their priorities; with a queue, of one kind. Kind
-- and priority are compared together with the serial: only the index on all three has this order, so no plan reads the
-- bundles that have ended.
(
    select o.serial, o.request_count from unnest($5::text[], $6::smallint[]) k (kind, priority)
    cross join lateral (
        select b.serial, b.request_count
        from (
            select o.serial, o.request_count, o.queues from lockstep.operation o
            where o.pending and (o.kind, o.priority, o.serial) >= (k.kind, k.priority, $1::bigint)
              and (o.kind, o.priority, o.serial) <= (k.kind, k.priority, 9223372036854775807)
            order by o.kind, o.priority, o.serial limit $4::int
        ) b
        where $2::text is null or $2 = any (b.queues)
        order by b.serial limit $3::int
    ) o
    order by o.serial limit $3
) union all (
    select o.serial, null from lockstep.operation o
    where $2 is not null and o.pending and (o.kind, o.priority, o.serial) >= ($5[1], $6[1], $1)
      and (o.kind, o.priority, o.serial) <= ($5[1], $6[1], 9223372036854775807)
    order by o.kind, o.priority, o.serial offset $4 limit 1
) limit $3
