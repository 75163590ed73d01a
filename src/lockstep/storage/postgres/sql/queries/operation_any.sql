-- Bundles from a given one on, oldest first, with their number of operations; with a queue only those that push to it,
-- of the next $4. If these are not enough, the last row says where to continue, without a number.
(
    select b.serial, b.request_count
    from (
        select o.serial, o.request_count, o.queues from lockstep.operation o
        where o.serial >= $1::bigint order by o.serial limit $4::int
    ) b
    where $2::text is null or $2 = any (b.queues)
    order by b.serial limit $3::int
) union all (
    select o.serial, null from lockstep.operation o
    where $2 is not null and o.serial >= $1 order by o.serial offset $4 limit 1
) limit $3
