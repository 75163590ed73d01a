-- What a group has before it in its queue.
select coalesce(sum(lockstep.behind(c)), 0)::bigint,
       count(*) filter (where lockstep.behind(c) > 0),
       coalesce(sum(lockstep.held(c, coalesce($2::timestamptz, clock_timestamp()))), 0)::bigint
from lockstep.consumer_group g
join lockstep.partition p on p.queue_id = g.queue_id
cross join lateral lockstep.cursor_at(g, p.id) c
where g.id = $1
