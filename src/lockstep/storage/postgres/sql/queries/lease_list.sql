-- Live leases by deadline.
select c.lease_id::text, q.name, p.name, p.id, g.name, c.acked + 1, c.lease_to, c.attempts + 1, c.leased_at, c.due_at
from lockstep.cursor c
join lockstep.consumer_group g on g.id = c.group_id
join lockstep.partition p on p.id = c.partition_id
join lockstep.queue q on q.id = p.queue_id
where c.lease_id is not null and c.due_at > coalesce($4::timestamptz, clock_timestamp())
  and ($1::int is null or q.id = $1)
  and ($2::interval is null or c.due_at <= coalesce($4::timestamptz, clock_timestamp()) + $2)
union all
select d.lease_id::text, q.name, p.name, p.id, g.name, d.from_seq, d.to_seq, d.attempts + 1, d.leased_at, d.due_at
from lockstep.delivery d
join lockstep.consumer_group g on g.id = d.group_id
join lockstep.partition p on p.id = d.partition_id
join lockstep.queue q on q.id = p.queue_id
where d.lease_id is not null and d.due_at > coalesce($4::timestamptz, clock_timestamp())
  and ($1::int is null or q.id = $1)
  and ($2::interval is null or d.due_at <= coalesce($4::timestamptz, clock_timestamp()) + $2)
order by 10, 4, 5, 6 limit $3
