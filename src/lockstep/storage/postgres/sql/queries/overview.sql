-- The whole store in one row.
select q.queues, q.partitions, q.namespaces, q.tasks, q.stored, q.pending, q.processing, q.stored - q.pending,
       (select count(*) from lockstep.dead_letter d join lockstep.queue q on q.id = d.queue_id), l.cursors,
       l.seconds_average, l.seconds_median, l.seconds_min, l.seconds_max,
       l.messages_average, l.messages_median, l.messages_min, l.messages_max
from (
    select count(*) as queues, count(distinct q.namespace) as namespaces, count(distinct q.task) as tasks,
           coalesce(sum(s.partitions), 0)::bigint as partitions, coalesce(sum(s.stored), 0)::bigint as stored,
           coalesce(sum(s.pending), 0)::bigint as pending, coalesce(sum(s.processing), 0)::bigint as processing
    from lockstep.queue q cross join lateral lockstep.queue_sums(q.id, $1::timestamptz) s
) q
cross join (
    select count(*) as cursors, avg(t.seconds) as seconds_average, percentile_cont(0.5) within group (order by t.seconds) as seconds_median,
           min(t.seconds) as seconds_min, max(t.seconds) as seconds_max,
           avg(t.messages) as messages_average, percentile_cont(0.5) within group (order by t.messages) as messages_median,
           min(t.messages) as messages_min, max(t.messages) as messages_max
    from (
        select lockstep.behind(c)::double precision as messages,
               extract(epoch from coalesce($1::timestamptz, clock_timestamp()) - s.created_at)::double precision as seconds
        from lockstep.consumer_group g
        join lockstep.partition p on p.queue_id = g.queue_id
        cross join lateral lockstep.cursor_at(g, p.id) c
        cross join lateral lockstep.head_run(c) r
        join lockstep.segment s on s.id = r.segment_id
    ) t
) l
