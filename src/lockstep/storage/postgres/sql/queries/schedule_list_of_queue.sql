-- Scheduled messages of a queue by due time, then id: a range of scheduled_queue_due.
select s.id, q.name, s.partition_name, s.due_at, s.created_at, s.key, s.codec, s.body,
       s.queue_id, q.encryption and s.id > q.waiting_sealed_after as must_be_sealed
from lockstep.scheduled s join lockstep.queue q on q.id = s.queue_id
where s.queue_id = $6::int
  and (s.due_at, s.id) > (coalesce($1::timestamptz, '-infinity'), $2::bigint) and s.due_at < coalesce($3::timestamptz, 'infinity')
  and ($4::text is null or starts_with(s.key, $4))
  and ($7::text is null or s.partition_name = $7)
order by s.due_at, s.id limit $5
