-- Duties: one server at a time performs each of them, once per interval. The first server that claims a due duty gets
-- it.

-- Claims a duty for _by, for at most _hold_seconds. Returns null if the claim is granted, otherwise in how many seconds
-- to ask again. The row lock decides between simultaneous claims; the later one sees what the first has written. A
-- claim that began in the future was made before the clock was set back, and does not count. Less than a minute is
-- ignored: a session that had to wait for the lock read the clock before that.
create or replace function lockstep.claim_duty(
    _name text, _interval_seconds double precision, _hold_seconds double precision, _by text, _at timestamptz
) returns double precision language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
begin
    insert into lockstep.duty as d (name, interval_seconds, next_run_at, claimed_until, claimed_by, last_started_at)
    values (_name, _interval_seconds, _now + make_interval(secs => _interval_seconds), _now + make_interval(secs => _hold_seconds), _by, _now)
    on conflict (name) do update
    set interval_seconds = excluded.interval_seconds, next_run_at = excluded.next_run_at, claimed_until = excluded.claimed_until,
        claimed_by = excluded.claimed_by, last_started_at = excluded.last_started_at
    where lockstep.duty_due_at(d, _interval_seconds) <= _now or d.last_started_at > _now + interval '1 minute';
    if found then
        return null;
    end if;
    return (select greatest(0, extract(epoch from lockstep.duty_due_at(d, _interval_seconds) - _now)) from lockstep.duty d where d.name = _name);
end $$;

-- When a duty may be claimed: not before the current claim ends, and at once if the interval was shortened.
create or replace function lockstep.duty_due_at(_duty lockstep.duty, _interval_seconds double precision) returns timestamptz language sql immutable as $$
    select greatest(_duty.claimed_until, least(_duty.next_run_at, _duty.last_started_at + make_interval(secs => _interval_seconds)))
$$;

-- Ends a claim and records its result; with _more, the duty is due again at once. False if the claim was lost.
create or replace function lockstep.finish_duty(
    _name text, _by text, _effect jsonb, _error text, _more boolean, _at timestamptz
) returns boolean language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
begin
    update lockstep.duty d
    set claimed_until = null, last_finished_at = _now, last_error = _error, last_effect = coalesce(_effect, d.last_effect),
        runs = d.runs + 1, failures = d.failures + (_error is not null)::int,
        next_run_at = case when _more then _now else d.next_run_at end
    where d.name = _name and d.claimed_by = _by and d.claimed_until is not null;
    return found;
end $$;
