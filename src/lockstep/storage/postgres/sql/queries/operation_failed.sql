-- The same as operation_any, for bundles with a failure, and the number of failed operations.
(
    select b.serial, b.failed_count
    from (
        select o.serial, o.failed_count, o.queues from lockstep.operation o
        where o.failed_count > 0 and o.serial >= $1::bigint order by o.serial limit $4::int
    ) b
    where $2::text is null or $2 = any (b.queues)
    order by b.serial limit $3::int
) union all (
    select o.serial, null from lockstep.operation o
    where $2 is not null and o.failed_count > 0 and o.serial >= $1 order by o.serial offset $4 limit 1
) limit $3
