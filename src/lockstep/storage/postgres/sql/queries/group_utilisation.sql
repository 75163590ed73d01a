-- How busy each group of each queue is.
select q.name, g.name, count(c.partition_id),
       count(*) filter (where c.lease_id is not null and c.due_at > t.now),
       count(*) filter (where c.due_at <= t.now),
       count(*) filter (where c.lease_id is null and c.due_at > t.now and c.due_at <> 'infinity'),
       count(*) filter (where c.due_at = 'infinity')
from lockstep.consumer_group g
join lockstep.queue q on q.id = g.queue_id
cross join (select coalesce($2::timestamptz, clock_timestamp()) as now) t
left join lockstep.partition p on p.queue_id = g.queue_id
left join lockstep.cursor c on c.partition_id = p.id and c.group_id = g.id
where $1::int is null or q.id = $1
group by q.name, g.name order by q.name, g.name
