-- Every cursor on queues, and every step of a pipeline that reads them on its own: when it last completed a message,
-- when that message was created, how many messages it has not done, and when the first of them was created.
select q.name, g.name, c.consumed_at, done.created_at, lockstep.behind(c), head.created_at, c.attempts
from lockstep.queue q
join lockstep.consumer_group g on g.queue_id = q.id
join lockstep.cursor c on c.group_id = g.id
left join lateral (
    select s.created_at from lockstep.runs_between(c.partition_id, c.acked - 1, c.acked) r
    join lockstep.segment s on s.id = r.segment_id
) done on true
left join lateral (
    select s.created_at from lockstep.head_run(c) r join lockstep.segment s on s.id = r.segment_id
) head on true
where q.name = any ($1::text[])
union all
select q.name, s.name, null, null, s.lag, s.oldest_at, 0
from lockstep.queue q cross join lateral lockstep.step_positions(q.id) s
where q.name = any ($1::text[])
