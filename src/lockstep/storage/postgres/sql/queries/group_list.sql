-- Groups of one queue or all, with their figures ($4: counted now, $5: up to this many partitions and cursors; see
-- figures.sql).
with chosen as materialized (
    select g.*, q.name as queue from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id
    where ($1::int is null or q.id = $1) and ($2::text is null or g.name = $2)
), figure as materialized (
    select f.* from lockstep.figures(array(select distinct c.queue_id from chosen c), $4::boolean, $5::bigint, $3::timestamptz) f
)
select g.name, g.queue, g.created_at, s.mode as subscription_mode, s.from_at, f.partitions, f.with_lag as partitions_with_lag, f.lag, f.in_flight,
       f.leased as leases, f.oldest_at, g.mode, f.figures_at, g.paused_at
from figure f
cross join lateral (select c.* from chosen c where c.id = f.group_id limit 1) g
left join lockstep.subscription s on s.queue_id = g.queue_id and s.group_name = g.name
order by g.queue, g.name
