-- The sessions that others wait for: $1 has the process ids of the waiting ones. Each row is a session at the root of
-- such a wait, which itself waits for nobody, and the lock that the waiter wants. A wait for a row lock shows as a lock
-- on the tuple, which the waiter has or is queued for; a name that another session is just creating has no visible
-- tuple. Without pg_read_all_stats, sessions of other roles have no state, no times and no statement. It reads no table
-- of ours, which might be what is locked.
with recursive chain as (
    select t.pid as waiter, t.pid as behind, b.pid as blocker, 1 as depth
    from unnest($1::int[]) t (pid) cross join lateral unnest(pg_blocking_pids(t.pid)) b (pid)
    union
    select c.waiter, c.blocker, b.pid, c.depth + 1
    from chain c cross join lateral unnest(pg_blocking_pids(c.blocker)) b (pid)
    where c.depth < 8
)
select distinct on (c.waiter) c.waiter, c.blocker, a.usename::text, a.application_name, a.state,
       extract(epoch from clock_timestamp() - a.xact_start)::float8, left(a.query, 500),
       w.locktype, n.nspname || '.' || r.relname, '(' || w.page || ',' || w.tuple || ')'
from chain c
left join pg_stat_activity a on a.pid = c.blocker
left join lateral (
    select l.locktype, l.relation, l.page, l.tuple from pg_locks l
    where l.pid = c.waiter and (l.locktype = 'tuple' or not l.granted)
    order by (l.locktype = 'tuple') desc limit 1
) w on true
left join pg_class r on r.oid = w.relation
left join pg_namespace n on n.oid = r.relnamespace
where not exists (select from chain d where d.waiter = c.waiter and d.behind = c.blocker)
order by c.waiter, a.xact_start
