-- The same as operation_any, for bundles with a failure, and the number of failed operations.
select b.serial, case when b.place <= $4 then b.failed_count end as failed_count
from (
    select o.*, row_number() over (order by o.serial) as place
    from (
        select o.serial, o.failed_count, o.queues from lockstep.operation o
        where o.failed_count > 0 and o.serial >= $1::bigint order by o.serial limit $4::int + 1
    ) o
) b
where case when b.place <= $4 then $2::text is null or $2 = any (b.queues) else $2 is not null end
order by b.serial limit $3::int
