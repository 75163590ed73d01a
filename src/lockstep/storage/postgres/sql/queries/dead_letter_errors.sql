-- Dead letters with their errors: of a queue ($1), of a group ($2), failed from a time ($3) to before another ($4); null: any.
select d.id, q.name, p.name, d.seq, d.group_name, d.attempts, d.error, d.failed_at
from lockstep.dead_letter d
join lockstep.queue q on q.id = d.queue_id
join lockstep.partition p on p.id = d.partition_id
where ($1::text is null or d.queue_id = any (array(select w.id from lockstep.queue w where w.name = $1)))
  and ($2::text is null or d.group_name = $2)
  and ($3::timestamptz is null or d.failed_at >= $3) and ($4::timestamptz is null or d.failed_at < $4)
