-- The same as operation_any, for bundles that have results.
select b.serial, case when b.place <= $4 then b.request_count end as request_count
from (
    select o.*, row_number() over (order by o.serial) as place
    from (
        select o.serial, o.request_count, o.queues from lockstep.operation o
        where o.results is not null and o.serial >= $1::bigint order by o.serial limit $4::int + 1
    ) o
) b
where case when b.place <= $4 then $2::text is null or $2 = any (b.queues) else $2 is not null end
order by b.serial limit $3::int
