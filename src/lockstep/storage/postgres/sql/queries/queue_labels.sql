-- The namespaces of queues with their sums, or the tasks ($5: counted now, $6: up to this many; see figures.sql). A sum
-- with an unknown part is null.
with page as materialized (
    select l.name, array_agg(q.id) as queue_ids
    from lockstep.queue q
    cross join lateral (select case $1::text when 'task' then q.task else q.namespace end as name) l
    where $2::text is null or l.name > $2
    group by l.name order by l.name limit $3
)
select l.name, count(*) as queues, case when count(f.partitions) = count(*) then sum(f.partitions)::bigint end as partitions,
       case when count(f.stored) = count(*) then sum(f.stored)::bigint end as messages,
       case when count(f.pending) = count(*) then sum(f.pending)::bigint end as pending, min(f.figures_at) as figures_at
from lockstep.queue_figures(array(select unnest(p.queue_ids) from page p), $5::boolean, $6::bigint, $4::timestamptz) f
join lockstep.queue q on q.id = f.queue_id
cross join lateral (select case $1::text when 'task' then q.task else q.namespace end as name) l
group by l.name order by l.name
