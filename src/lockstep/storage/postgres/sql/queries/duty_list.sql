-- All duties that were ever claimed.
select d.name, d.interval_seconds, d.next_run_at, d.claimed_until, d.claimed_by, d.last_started_at, d.last_finished_at, d.last_error,
       d.last_effect::text as last_effect, d.runs, d.failures
from lockstep.duty d order by d.name
