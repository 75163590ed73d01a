-- The first live leases by deadline. Finds those of each group through the index on due times, as many as requested.
select c.lease_id::text as lease_id, g.queue, p.name as partition, c.partition_id, g.name as "group", c.acked + 1 as first_seq,
       c.lease_to as last_seq, c.attempts + 1 as attempt, c.leased_at, c.due_at as expires_at
from (
    select g.id, g.name, q.name as queue from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id
    where $1::int is null or q.id = $1
) g
cross join lateral (
    select c.* from lockstep.cursor c
    where c.group_id = g.id and c.due_at > (select coalesce($4::timestamptz, clock_timestamp()))
      and c.due_at <= (select coalesce(coalesce($4::timestamptz, clock_timestamp()) + $2::interval, 'infinity')) and c.lease_id is not null
    order by c.group_id, c.due_at, c.partition_id limit $3
) c
cross join lateral (select p.name from lockstep.partition p where p.id = c.partition_id limit 1) p
union all
select d.lease_id::text, g.queue, p.name, d.partition_id, g.name, d.from_seq, d.to_seq, d.attempts + 1, d.leased_at, d.due_at
from (
    select g.id, g.name, q.name as queue from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id
    where g.mode = 'shared' and ($1::int is null or q.id = $1)
) g
cross join lateral (
    select d.* from lockstep.delivery d
    where d.group_id = g.id and d.due_at > (select coalesce($4::timestamptz, clock_timestamp()))
      and d.due_at <= (select coalesce(coalesce($4::timestamptz, clock_timestamp()) + $2::interval, 'infinity')) and d.lease_id is not null
    order by d.group_id, d.due_at, d.partition_id, d.from_seq limit $3
) d
cross join lateral (select p.name from lockstep.partition p where p.id = d.partition_id limit 1) p
order by 10, 4, 5, 6 limit $3
