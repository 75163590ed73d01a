-- The dead letters of queues ($1) that failed from a time ($2) to before another ($3).
select q.name, d.group_name, d.failed_at, d.attempts
from lockstep.dead_letter d join lockstep.queue q on q.id = d.queue_id
where d.queue_id = any (array(select w.id from lockstep.queue w where w.name = any ($1::text[])))
  and d.failed_at >= $2::timestamptz and d.failed_at < $3::timestamptz
