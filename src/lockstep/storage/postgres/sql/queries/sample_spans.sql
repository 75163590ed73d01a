-- Samples of one queue, of the queues of a namespace and/or task, or of all, aggregated into spans of $4 seconds.
with part as (
    select floor(extract(epoch from s.at) / $4::int) as number, s.queue, sum(s.seconds) as seconds, sum(s.pushed) as pushed,
           sum(s.completed) as completed, sum(s.dead) as dead, (array_agg(s.pending order by s.at desc))[1] as pending,
           max(s.lag_seconds) as lag_seconds
    from lockstep.sample s
    where ($1::text is null or s.queue = $1) and s.at >= $2::timestamptz and s.at < $3::timestamptz
      and ($5::text is null or exists (select 1 from lockstep.queue q where q.name = s.queue and q.namespace = $5))
      and ($6::text is null or exists (select 1 from lockstep.queue q where q.name = s.queue and q.task = $6))
    group by 1, 2
)
select to_timestamp((p.number * $4)::float8) as at, max(p.seconds) as seconds, sum(p.pushed)::bigint as pushed,
       sum(p.completed)::bigint as completed, sum(p.dead)::bigint as dead, sum(p.pending)::bigint as pending, max(p.lag_seconds) as lag_seconds
from part p group by p.number order by p.number
