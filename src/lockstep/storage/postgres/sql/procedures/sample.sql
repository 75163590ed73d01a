-- Samples: how much was pushed and completed since the sample before, and what is pending now.
--
-- Nothing is counted while messages flow. The sums of the seqs that partitions and cursors are at grow by exactly what was
-- pushed and passed, so a sample is the difference of two sums. It costs a probe per partition and per group, and a few
-- more for each cursor that lags. Only deaths are found by their time: one that commits while a sample is taken is counted as
-- completed.
-- Locks: the queue's sums, before the look, so that whoever removes a partition either takes its seqs out of the sums that
-- were looked at, or is seen by the look.
-- Indexes: partition_queue, run_pkey, cursor_pkey, dead_letter_queue.
create or replace function lockstep.sample(_queue_id int, _at timestamptz) returns boolean language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _queue lockstep.queue;
    _since timestamptz;
    _pushed bigint;
    _passed bigint;
    _dead bigint;
begin
    select q.* into _queue from lockstep.queue q where q.id = _queue_id;
    perform 1 from lockstep.sample_sum s where s.queue_id = _queue_id order by s.group_id for update;
    _since := coalesce((select s.at from lockstep.sample_sum s where s.queue_id = _queue_id and s.group_id = 0), _queue.created_at);
    if _queue.id is null or _since >= _now then
        return false;
    end if;
    with grown as (
        select t.group_id, t.seqs, t.seqs - coalesce(s.seqs, t.base) as growth
        from lockstep.sample_seqs(_queue_id) t
        left join lockstep.sample_sum s on s.queue_id = _queue_id and s.group_id = t.group_id
    ), kept as (
        insert into lockstep.sample_sum (queue_id, group_id, at, seqs) select _queue_id, g.group_id, _now, g.seqs from grown g
        on conflict (queue_id, group_id) do update set at = excluded.at, seqs = excluded.seqs
    )
    select coalesce(sum(g.growth) filter (where g.group_id = 0), 0),
           -- A group that was moved back has completed nothing.
           coalesce(sum(greatest(g.growth, 0)) filter (where g.group_id <> 0), 0)
    into _pushed, _passed from grown g;
    delete from lockstep.sample_sum s
    where s.queue_id = _queue_id and s.group_id <> 0 and not exists (select 1 from lockstep.consumer_group g where g.id = s.group_id);
    select count(*) into _dead from lockstep.dead_letter d where d.queue_id = _queue_id and d.failed_at >= _since and d.failed_at < _now;
    insert into lockstep.sample (at, queue, seconds, pushed, completed, dead, pending, lag_seconds)
    select _now, _queue.name, extract(epoch from _now - _since), _pushed, greatest(_passed - _dead, 0), _dead,
           p.pending, coalesce(extract(epoch from greatest(_now - p.oldest_at, interval '0')), 0)
    from lockstep.sample_pending(_queue_id) p
    on conflict do nothing;
    return true;
end $$;

-- The sums of seqs of a queue (as group 0) and of its groups; base is where a group counts from that was not sampled before.
create or replace function lockstep.sample_seqs(_queue_id int) returns table (group_id int, seqs bigint, base bigint) language sql stable as $$
    select 0, coalesce(sum(lockstep.last_seq(p.id)), 0)::bigint, 0::bigint from lockstep.partition p where p.queue_id = _queue_id
    union all
    select g.id, coalesce(sum(lockstep.passed(c)), 0)::bigint,
           -- Where a group began is not kept. One that reads all began with the first message that was stored.
           coalesce(sum(case
               when exists (select 1 from lockstep.sample_sum s where s.queue_id = _queue_id and s.group_id = g.id) then 0
               when coalesce(u.mode, 'all') = 'all' then least(lockstep.start_of(p.id), lockstep.passed(c)) else lockstep.passed(c) end), 0)::bigint
    from lockstep.consumer_group g
    left join lockstep.subscription u on u.queue_id = g.queue_id and u.group_name = g.name
    left join lockstep.partition p on p.queue_id = g.queue_id
    left join lateral lockstep.cursor_at(g, p.id) c on true
    where g.queue_id = _queue_id
    group by g.id
$$;

-- Pending messages of a queue (the lag of its furthest-behind group; all that is stored if it has none), and when the
-- oldest of them was created. Drained cursors are passed over by their due_at.
create or replace function lockstep.sample_pending(_queue_id int) returns table (pending bigint, oldest_at timestamptz) language plpgsql stable as $$
begin
    if not exists (select 1 from lockstep.consumer_group g where g.queue_id = _queue_id) then
        return query
        select coalesce(sum(lockstep.lag(p.id, lockstep.start_of(p.id))), 0)::bigint,
               (select s.created_at from lockstep.segment s where s.queue_id = _queue_id order by s.id limit 1)
        from lockstep.partition p where p.queue_id = _queue_id;
        return;
    end if;
    return query
    select coalesce(max(t.pending), 0)::bigint, min(t.oldest_at)
    from (
        select sum(lockstep.behind(c)) as pending, min(s.created_at) as oldest_at
        from lockstep.consumer_group g
        cross join lateral (
            select c.* from lockstep.cursor c where c.group_id = g.id and c.due_at is not null
            union
            select c.* from lockstep.delivery d join lockstep.cursor c on c.partition_id = d.partition_id and c.group_id = d.group_id
            where g.mode = 'shared' and d.group_id = g.id
            union
            select c.* from lockstep.partition p cross join lateral lockstep.cursor_at(g, p.id) c
            where g.placed_upto is not null and p.queue_id = g.queue_id
        ) c
        left join lateral lockstep.head_run(c) r on true
        left join lockstep.segment s on s.id = r.segment_id
        where g.queue_id = _queue_id
        group by g.id
    ) t;
end $$;

-- Removes samples and removals from before a time, and sums of queues that are gone: at most _limit rows of each. And the
-- positions of Spark's streams that are gone, what their tasks have left, and the last batches of queries that are gone.
create or replace function lockstep.prune_history(_seconds double precision, _limit int, _at timestamptz) returns int language plpgsql as $$
declare
    _before timestamptz := coalesce(_at, clock_timestamp()) - make_interval(secs => _seconds);
    _samples int;
    _removals int;
begin
    delete from lockstep.sample s using (
        select o.at, o.queue from lockstep.sample o where o.at < _before order by o.at, o.queue limit _limit
    ) t where s.at = t.at and s.queue = t.queue;
    get diagnostics _samples = row_count;
    delete from lockstep.removal r using (
        select o.at, o.queue, o.kind from lockstep.removal o where o.at < _before order by o.at, o.queue, o.kind limit _limit
    ) t where r.at = t.at and r.queue = t.queue and r.kind = t.kind;
    get diagnostics _removals = row_count;
    delete from lockstep.sample_sum s where not exists (select 1 from lockstep.queue q where q.id = s.queue_id);
    perform lockstep.prune_positions();
    -- However short the history is: a batch may run for long, and needs what it has staged and leased.
    perform lockstep.spark_prune(least(_before, coalesce(_at, clock_timestamp()) - interval '1 day'));
    perform lockstep.forget_batches(_at);
    return _samples + _removals;
end $$;
