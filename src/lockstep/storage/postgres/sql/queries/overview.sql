-- The whole store in one row ($2: counted now, $3: up to this many partitions and cursors; see figures.sql). If counted
-- now, a median is that of all cursors with a lag; otherwise it is the weighted median of the medians of slices. A sum
-- with an unknown part is null, and so are all figures about cursors while those of one group are unknown.
with figure as materialized (
    select f.* from lockstep.figures(array(select q.id from lockstep.queue q), $2::boolean, $3::bigint, $1::timestamptz) f
), queue as (
    select f.queue_id, min(f.figures_at) as figures_at, max(f.partitions) filter (where f.group_id = 0) as partitions,
           max(f.stored) filter (where f.group_id = 0) as stored,
           coalesce(max(f.lag) filter (where f.group_id <> 0), max(f.stored) filter (where f.group_id = 0)) as pending,
           case when count(f.in_flight) = count(*) then sum(f.in_flight) end as in_flight,
           max(f.dead_letters) filter (where f.group_id = 0) as dead_letters
    from figure f group by f.queue_id
), sums as (
    select case when count(s.partitions) = count(*) then coalesce(sum(s.partitions), 0)::bigint end as partitions,
           case when count(s.stored) = count(*) then coalesce(sum(s.stored), 0)::bigint end as stored,
           case when count(s.pending) = count(*) then coalesce(sum(s.pending), 0)::bigint end as pending,
           case when count(s.in_flight) = count(*) then coalesce(sum(s.in_flight), 0)::bigint end as processing,
           case when count(s.dead_letters) = count(*) then coalesce(sum(s.dead_letters), 0)::bigint end as dead_letters,
           min(s.figures_at) as figures_at
    from queue s
), labels as (
    select count(*) as queues, count(distinct q.namespace) as namespaces, count(distinct q.task) as tasks from lockstep.queue q
), lags as (
    select case when count(*) = count(f.with_lag) then coalesce(sum(f.with_lag), 0)::bigint end as cursors,
           sum(f.created_sum) filter (where f.with_lag > 0) as created_sum, min(f.oldest_at) filter (where f.with_lag > 0) as oldest_at,
           max(f.newest_at) filter (where f.with_lag > 0) as newest_at, sum(f.lag) filter (where f.with_lag > 0) as lag,
           min(f.lag_min) filter (where f.with_lag > 0) as lag_min, max(f.lag_max) filter (where f.with_lag > 0) as lag_max
    from figure f where f.group_id <> 0 or f.with_lag is null
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
select l.queues, s.partitions, l.namespaces, l.tasks, s.stored as messages, s.pending, s.processing, s.stored - s.pending as completed,
       s.dead_letters, c.cursors as cursors_with_lag, s.figures_at,
       array[a.now - c.created_sum / nullif(c.cursors, 0), a.now - m.created, a.now - extract(epoch from c.newest_at),
             a.now - extract(epoch from c.oldest_at)]::double precision[] as lag_seconds,
       array[c.lag / nullif(c.cursors, 0), m.lag, c.lag_min, c.lag_max]::double precision[] as lag_messages
from labels l cross join sums s cross join lags c cross join middle m cross join asked a
