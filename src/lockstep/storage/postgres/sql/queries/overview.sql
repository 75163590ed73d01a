-- The whole store in one row ($2: counted now, $3: up to so many partitions and cursors; see figures.sql). A median is that of
-- all cursors with a lag where they are counted now, and otherwise that of the medians of slices, by their weights.
with figure as materialized (
    select f.* from lockstep.figures(array(select q.id from lockstep.queue q), $2::boolean, $3::bigint, $1::timestamptz) f
), queue as (
    select f.queue_id, min(f.figures_at) as figures_at, sum(f.partitions) filter (where f.group_id = 0) as partitions, sum(f.stored) as stored,
           coalesce(max(f.lag) filter (where f.group_id <> 0), max(f.stored)) as pending, sum(f.in_flight) as in_flight, sum(f.dead_letters) as dead_letters
    from figure f group by f.queue_id
), sums as (
    select coalesce(sum(s.partitions), 0)::bigint as partitions, coalesce(sum(s.stored), 0)::bigint as stored,
           coalesce(sum(s.pending), 0)::bigint as pending, coalesce(sum(s.in_flight), 0)::bigint as processing,
           coalesce(sum(s.dead_letters), 0)::bigint as dead_letters, min(s.figures_at) as figures_at
    from queue s
), labels as (
    select count(*) as queues, count(distinct q.namespace) as namespaces, count(distinct q.task) as tasks from lockstep.queue q
), lags as (
    select coalesce(sum(f.with_lag), 0)::bigint as cursors, sum(f.created_sum) as created_sum, min(f.oldest_at) as oldest_at, max(f.newest_at) as newest_at,
           sum(f.lag) as lag, min(f.lag_min) as lag_min, max(f.lag_max) as lag_max
    from figure f where f.group_id <> 0 and f.with_lag > 0
), each as materialized (
    select t.* from figure f cross join lateral unnest(f.created_each, f.lag_each, f.weights) t (created, lag, weight) where f.group_id <> 0
), middle as (
    select (min(t.created) filter (where 2 * t.created_upto >= t.total) + min(t.created) filter (where 2 * t.created_upto > t.total)) / 2 as created,
           (min(t.lag) filter (where 2 * t.lag_upto >= t.total) + min(t.lag) filter (where 2 * t.lag_upto > t.total)) / 2 as lag
    from (
        select e.*, sum(e.weight) over (order by e.created, e.lag rows unbounded preceding) as created_upto,
               sum(e.weight) over (order by e.lag, e.created rows unbounded preceding) as lag_upto, sum(e.weight) over () as total
        from each e
    ) t
), asked as (
    select extract(epoch from coalesce($1::timestamptz, clock_timestamp()))::double precision as now
)
select l.queues, s.partitions, l.namespaces, l.tasks, s.stored, s.pending, s.processing, s.stored - s.pending, s.dead_letters, c.cursors,
       a.now - c.created_sum / nullif(c.cursors, 0), a.now - m.created, a.now - extract(epoch from c.newest_at)::double precision,
       a.now - extract(epoch from c.oldest_at)::double precision,
       (c.lag / nullif(c.cursors, 0))::double precision, m.lag, c.lag_min, c.lag_max, s.figures_at
from labels l cross join sums s cross join lags c cross join middle m cross join asked a
