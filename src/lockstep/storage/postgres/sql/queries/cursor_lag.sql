-- Cursors of a queue with their exact lag.
select p.name, p.id, g.name, c.acked, lockstep.last_seq(p.id), lockstep.lag(p.id, c.acked),
       (select s.created_at from lockstep.next_run(p.id, c.acked) r join lockstep.segment s on s.id = r.segment_id) as oldest_at,
       c.due_at, c.attempts, c.lease_id is not null and c.due_at > coalesce($6::timestamptz, clock_timestamp()), c.consumed_at
from lockstep.partition p
join lockstep.cursor c on c.partition_id = p.id
join lockstep.consumer_group g on g.id = c.group_id
where p.queue_id = $1 and ($2::int is null or c.group_id = $2)
  and p.id > $4 and p.id >= coalesce($3::bigint, 0) and p.id <= coalesce($3, 9223372036854775807)
order by p.id, g.name limit $5
