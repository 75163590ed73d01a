-- The namespaces of queues with their sums, or the tasks.
select l.name, count(*), sum(s.partitions)::bigint, sum(s.stored)::bigint, sum(s.pending)::bigint
from lockstep.queue q
cross join lateral (select case $1::text when 'task' then q.task else q.namespace end as name) l
cross join lateral lockstep.queue_sums(q.id, $4::timestamptz) s
where $2::text is null or l.name > $2
group by l.name order by l.name limit $3
