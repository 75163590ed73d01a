-- Samples of all server processes, aggregated into spans of $3 seconds.
with part as (
    select floor(extract(epoch from s.at) / $3::int) as number, s.server, sum(s.seconds) as seconds, sum(s.requests) as requests,
           sum(s.client_errors) as client_errors, sum(s.server_errors) as server_errors, sum(s.queued) as queued,
           sum(s.rejected) as rejected, max(s.load) as load
    from lockstep.server_sample s where s.at >= $1::timestamptz and s.at < $2::timestamptz
    group by 1, 2
)
select to_timestamp((p.number * $3)::float8) as at, count(*)::int as servers, max(p.seconds) as seconds,
       sum(p.requests)::bigint as requests, sum(p.client_errors)::bigint as client_errors,
       sum(p.server_errors)::bigint as server_errors, sum(p.queued)::bigint as queued, sum(p.rejected)::bigint as rejected,
       max(p.load) as load
from part p group by p.number order by p.number
