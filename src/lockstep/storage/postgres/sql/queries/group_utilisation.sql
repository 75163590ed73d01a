-- How busy each group of each queue is.
select q.name, g.name, count(c.partition_id),
       count(*) filter (where b.leased),
       count(*) filter (where b.due_at <= t.now),
       count(*) filter (where not b.leased and b.due_at > t.now and b.due_at <> 'infinity'),
       count(*) filter (where not b.leased and b.due_at = 'infinity')
from lockstep.consumer_group g
join lockstep.queue q on q.id = g.queue_id
cross join (select coalesce($2::timestamptz, clock_timestamp()) as now) t
left join lockstep.partition p on p.queue_id = g.queue_id
left join lateral lockstep.cursor_at(g, p.id) c on true
cross join lateral (
    select d.due_at, d.due_at > t.now and lockstep.is_leased(c, t.now) as leased from (select lockstep.due_again(c) as due_at) d
) b
where $1::int is null or q.id = $1
group by q.name, g.name order by q.name, g.name
