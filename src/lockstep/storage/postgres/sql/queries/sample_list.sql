-- Samples of one queue or all, by time and queue, after a place.
select s.at, s.queue, s.seconds, s.pushed, s.completed, s.dead, s.pending, s.lag_seconds
from lockstep.sample s
where ($1::text is null or s.queue = $1) and s.at >= coalesce($2::timestamptz, '-infinity') and s.at < coalesce($3::timestamptz, 'infinity')
  and (s.at, s.queue) > (coalesce($4::timestamptz, '-infinity'), coalesce($5::text, ''))
order by s.at, s.queue limit $6
