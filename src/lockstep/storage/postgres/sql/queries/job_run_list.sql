-- The latest $1 runs of Spark jobs, newest first: batches of archives, and statistics that were computed together. Of
-- each window length only the newest windows are examined.
with recursive length as (
    select min(w.window_seconds) as seconds from lockstep.stat_window w
    union all
    select (select min(w.window_seconds) from lockstep.stat_window w where w.window_seconds > l.seconds)
    from length l where l.seconds is not null
), batch as (
    select b.* from lockstep.archive_batch b order by b.id desc limit $1
), stats as (
    select w.computed_at, w.window_seconds, count(*) as windows,
           array_agg(distinct w.queue order by w.queue) as queues
    from length l
    cross join lateral (
        select n.* from lockstep.stat_window n where n.window_seconds = l.seconds order by n.window_start desc limit 10000
    ) w
    group by w.computed_at, w.window_seconds
    order by w.computed_at desc limit $1
)
select * from (
    select 'archive' as job, b.archive as target, coalesce(f.queues, '{}') as queues, b.begun_at as began_at,
           b.committed_at as ended_at, b.messages, f.bytes, null::bigint as windows
    from batch b
    cross join lateral (
        select array_agg(distinct f.queue order by f.queue) as queues, coalesce(sum(f.bytes), 0)::bigint as bytes
        from lockstep.archive_file f where f.batch_id = b.id
    ) f
    union all
    select 'stats', 'windows of ' || s.window_seconds || ' s', s.queues, null, s.computed_at, null, null, s.windows from stats s
) r
order by coalesce(r.ended_at, r.began_at) desc limit $1
