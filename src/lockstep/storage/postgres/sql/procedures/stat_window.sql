-- Statistics by window, as the job `stats` computes them.

-- Writes windows, given as an array of objects with the column names. A window never loses information: messages, dead
-- letters and cursors may be gone or have moved when it is computed again, so counts never decrease, and a distribution
-- is replaced only by one with at least as many samples. Returns the number of windows written.
create or replace function lockstep.put_stat_windows(_rows jsonb) returns bigint language plpgsql as $$
declare
    _written bigint;
begin
    insert into lockstep.stat_window as w
    select * from jsonb_populate_recordset(null::lockstep.stat_window, _rows) r
    order by r.queue, r.group_name, r.window_seconds, r.window_start
    on conflict (queue, group_name, window_seconds, window_start) do update set
        pushed = greatest(w.pushed, excluded.pushed),
        completed = greatest(w.completed, excluded.completed),
        dead = greatest(w.dead, excluded.dead),
        pending = greatest(w.pending, excluded.pending),
        lag_seconds = greatest(w.lag_seconds, excluded.lag_seconds),
        attempts_max = greatest(w.attempts_max, excluded.attempts_max),
        (latency_samples, latency_seconds_p50, latency_seconds_p95, latency_seconds_max) = (
            select t.n, t.p50, t.p95, t.most from (values
                (1, w.latency_samples, w.latency_seconds_p50, w.latency_seconds_p95, w.latency_seconds_max),
                (2, excluded.latency_samples, excluded.latency_seconds_p50, excluded.latency_seconds_p95, excluded.latency_seconds_max)
            ) t (o, n, p50, p95, most) order by t.n desc nulls last, t.o desc limit 1
        ),
        (trace_samples, trace_seconds_p50, trace_seconds_p95, trace_seconds_max) = (
            select t.n, t.p50, t.p95, t.most from (values
                (1, w.trace_samples, w.trace_seconds_p50, w.trace_seconds_p95, w.trace_seconds_max),
                (2, excluded.trace_samples, excluded.trace_seconds_p50, excluded.trace_seconds_p95, excluded.trace_seconds_max)
            ) t (o, n, p50, p95, most) order by t.n desc nulls last, t.o desc limit 1
        ),
        computed_at = excluded.computed_at;
    get diagnostics _written = row_count;
    return _written;
end $$;

-- Removes windows that began before a time; returns their number.
create or replace function lockstep.prune_stat_windows(_before timestamptz) returns bigint language plpgsql as $$
declare
    _removed bigint;
begin
    delete from lockstep.stat_window w where w.window_start < _before;
    get diagnostics _removed = row_count;
    return _removed;
end $$;
