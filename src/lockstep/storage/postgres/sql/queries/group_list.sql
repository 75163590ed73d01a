-- Groups of one queue or all.
select g.name, q.name as queue, g.created_at, s.mode, s.from_at, c.partitions, c.with_lag, c.lag, c.leases, c.oldest_at, g.mode
from lockstep.consumer_group g
join lockstep.queue q on q.id = g.queue_id
left join lockstep.subscription s on s.queue_id = g.queue_id and s.group_name = g.name
cross join lateral (
    select count(*) as partitions, count(*) filter (where t.lag > 0) as with_lag, coalesce(sum(t.lag), 0)::bigint as lag,
           count(*) filter (where t.leased) as leases, min(t.oldest_at) as oldest_at
    from (
        select lockstep.behind(c) as lag, lockstep.is_leased(c, coalesce($3::timestamptz, clock_timestamp())) as leased,
               (select s.created_at from lockstep.head_run(c) r join lockstep.segment s on s.id = r.segment_id) as oldest_at
        from lockstep.partition p cross join lateral lockstep.cursor_at(g, p.id) c
        where p.queue_id = g.queue_id
    ) t
) c
where ($1::int is null or q.id = $1) and ($2::text is null or g.name = $2)
order by q.name, g.name
