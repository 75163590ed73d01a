-- A page of queues with their figures ($8: counted now, $9: up to this many partitions and cursors; see figures.sql).
with page as materialized (
    select q.* from lockstep.queue q
    where ($1::text is null or q.name = $1) and ($2::text is null or q.namespace = $2) and ($3::text is null or q.task = $3)
      and ($4::text is null or q.name > $4) and ($7::text is null or q.name >= $7)
    order by q.name limit $5
), figure as materialized (
    select f.* from lockstep.queue_figures(array(select p.id from page p), $8::boolean, $9::bigint, $6::timestamptz) f
)
select q.id, q.name, q.namespace, q.task, q.created_at, f.partitions, f.stored as messages, f.pending, f.processing, f.dead_letters,
       f.oldest_at, f.figures_at, lockstep.queue_options(q.id) as options
from page q join figure f on f.queue_id = q.id
order by q.name
