-- Bundles from a given one on, oldest first, with their number of operations; with a queue only those that push to it,
-- of the next $4. If these are not enough, the last row says where to continue, without a number.
-- It walks them once: a second walk in the index alone would read the table, too, as long as no vacuum has seen it.
select b.serial, case when b.place <= $4 then b.request_count end as request_count
from (
    select o.*, row_number() over (order by o.serial) as place
    from (
        select o.serial, o.request_count, o.queues from lockstep.operation o
        where o.serial >= $1::bigint order by o.serial limit $4::int + 1
    ) o
) b
where case when b.place <= $4 then $2::text is null or $2 = any (b.queues) else $2 is not null end
order by b.serial limit $3::int
