-- Bundles in which something has failed, from one on, oldest first, and how many operations; only those that push to a queue.
select o.serial, o.failed_count from lockstep.operation o
where o.failed_count > 0 and o.serial >= $1::bigint and ($2::text is null or $2::text = any (o.queues))
order by o.serial limit $3::int
