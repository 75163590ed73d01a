-- Bundles from one on, oldest first, and how many operations they have; only those that push to a queue, or have results.
select o.serial, o.request_count from lockstep.operation o
where o.serial >= $1::bigint and ($2::text is null or $2::text = any (o.queues)) and (not $4::boolean or o.results is not null)
order by o.serial limit $3::int
