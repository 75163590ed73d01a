-- The samples of queues ($1) that lie, at least in part, between two times ($2, $3).
select s.queue, s.at, s.seconds, s.completed, s.pending, s.lag_seconds from lockstep.sample s
where s.queue = any ($1::text[]) and s.at >= $2::timestamptz and s.at - make_interval(secs => s.seconds) < $3::timestamptz
