-- Samples: how much was pushed and completed since the previous sample, and what is pending now; and the figures of
-- large queues.
--
-- Nothing is counted while messages flow. The sums of the seqs of partitions and cursors grow by exactly what was
-- pushed and passed, so a sample is the difference of two sums. The sums come from a walk over the partitions in
-- slices, each a separate call; a queue with few partitions needs one slice. The walk also produces the queue's figures
-- (figures.sql). Only deaths are found by their time: a death that commits while a sample is taken is counted as
-- completed.
-- Locks: an advisory lock of the queue, so that only one walk runs at a time; then the queue's sums, before counting,
-- so that the removal of a partition either subtracts its seqs from the stored sums or is visible when counting.
-- Indexes: those of lockstep.look, dead_letter_queue.

-- Walks over the next _partitions partitions of a queue, and takes the sample at the end of the walk.
-- _taken: the sample was taken.
-- _more: the walk continues.
create or replace function lockstep.sample(
    _queue_id int, _partitions int, _at timestamptz, out _taken boolean, out _more boolean
) language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _queue lockstep.queue;
    _since timestamptz;
    _after bigint;
    _upto bigint;
    _found int;
begin
    _taken := false;
    _more := false;
    if not pg_try_advisory_xact_lock(1819505778, _queue_id) then
        return;
    end if;
    select q.* into _queue from lockstep.queue q where q.id = _queue_id;
    perform 1 from lockstep.sample_sum s where s.queue_id = _queue_id order by s.group_id for update;
    perform 1 from lockstep.figure f where f.queue_id = _queue_id and f.walking order by f.group_id for update;
    _since := coalesce((select s.at from lockstep.sample_sum s where s.queue_id = _queue_id and s.group_id = 0), _queue.created_at);
    if _queue.id is null or _since >= _now then
        return;
    end if;
    select f.upto into _after from lockstep.figure f where f.queue_id = _queue_id and f.group_id = 0 and f.walking;
    if not found then
        _after := 0;
        insert into lockstep.figure (queue_id, group_id, walking, at)
        select _queue_id, g.id, true, _now
        from (select 0 as id union all select g.id from lockstep.consumer_group g where g.queue_id = _queue_id) g;
    end if;
    select max(t.id), count(*) into _upto, _found from unnest(lockstep.next_partitions(_queue_id, _after, _partitions)) t (id);
    perform lockstep.add_to_walk(_queue_id, _after, coalesce(_upto, _after), _now);
    _more := _found = _partitions;
    if not _more then
        perform lockstep.end_walk(_queue, _since, _now);
        _taken := true;
    end if;
end $$;

-- Adds the figures of the next partitions to those of a walk. A group that began during the walk waits for the next
-- one.
create or replace function lockstep.add_to_walk(_queue_id int, _after bigint, _upto bigint, _now timestamptz) returns void language sql as $$
    update lockstep.figure f
    set upto = _upto, partitions = f.partitions + l.partitions, stored = f.stored + l.stored, seqs = f.seqs + l.seqs,
        base = f.base + l.base, lag = f.lag + l.lag, with_lag = f.with_lag + l.with_lag, in_flight = f.in_flight + l.in_flight,
        leased = f.leased + l.leased, busy = f.busy + l.busy, ready = f.ready + l.ready, waiting = f.waiting + l.waiting, stopped = f.stopped + l.stopped,
        oldest_at = least(f.oldest_at, l.oldest_at), newest_at = greatest(f.newest_at, to_timestamp(e.created_max)),
        created_sum = f.created_sum + coalesce(e.created_sum, 0),
        lag_min = least(f.lag_min, e.lag_min), lag_max = greatest(f.lag_max, e.lag_max),
        created_medians = case when l.with_lag > 0 then f.created_medians || e.created_median else f.created_medians end,
        lag_medians = case when l.with_lag > 0 then f.lag_medians || e.lag_median else f.lag_medians end,
        weights = case when l.with_lag > 0 then f.weights || l.with_lag else f.weights end
    from lockstep.look(_queue_id, _after, _upto, _now) l
    cross join lateral (
        select max(t.created) as created_max, sum(t.created) as created_sum, min(t.lag)::bigint as lag_min, max(t.lag)::bigint as lag_max,
               percentile_cont(0.5) within group (order by t.created) as created_median,
               percentile_cont(0.5) within group (order by t.lag) as lag_median
        from unnest(l.created_each, l.lag_each) t (created, lag)
    ) e
    where f.queue_id = _queue_id and f.walking and f.group_id = l.group_id
$$;

-- What the steps of pipelines have read of a queue since the last sample, and what the slowest of them still has to
-- read: null, and no steps, if none reads it on its own. Steps that share a group are counted with the groups.
create or replace function lockstep.sample_steps(
    _queue lockstep.queue, out messages bigint, out pending bigint, out oldest_at timestamptz, out steps bigint
) language plpgsql as $$
begin
    with read as (
        update lockstep.pipeline_read r set sampled = r.messages
        from (
            select o.pipeline, o.step, o.queue, o.sampled from lockstep.pipeline_read o
            where o.queue = _queue.name and o.messages <> o.sampled
              -- What a group has passed is counted with the groups.
              and not exists (
                  select 1 from lockstep.pipeline_step s where s.pipeline = o.pipeline and s.step = o.step and s.group_name is not null)
            order by o.pipeline, o.step for update
        ) o
        where r.pipeline = o.pipeline and r.step = o.step and r.queue = o.queue
        returning r.messages - o.sampled as n
    )
    select coalesce(sum(n.n), 0) into messages from read n;
    select max(l.lag), min(l.oldest_at), count(*) into pending, oldest_at, steps
    from lockstep.step_positions(_queue.id) l;
end $$;

-- The steps that read a queue on their own: the number of messages that each still has to read, and since when the
-- first one waits. The cost grows with that number.
create or replace function lockstep.step_positions(_queue_id int) returns table (name text, lag bigint, oldest_at timestamptz) language sql stable as $$
    select p.name, coalesce(l.messages, 0), l.oldest_at
    from lockstep.pipeline_step s
    cross join lateral (
        select o.* from lockstep.spark_position o
        where o.queue_id = _queue_id and o.name = s.pipeline || '.' || s.step order by o.created_at desc limit 1
    ) p
    cross join lateral (
        select sum(t.message_count)::bigint as messages, min(t.created_at) as oldest_at
        from lockstep.segment t
        where t.queue_id = _queue_id and t.txid >= pg_snapshot_xmin(p.read_base)
          and not lockstep.is_read(p.read_base, p.read_upto, p.read_segment, t.txid, t.id)
    ) l
    where s.group_name is null
$$;

-- Takes the sample at the end of a walk, and replaces the previous figures by those of the walk.
create or replace function lockstep.end_walk(_queue lockstep.queue, _since timestamptz, _now timestamptz) returns void language plpgsql as $$
declare
    _pushed bigint;
    _passed bigint;
    _dead bigint;
    _pending bigint;
    _oldest_at timestamptz;
    _read record;
begin
    delete from lockstep.figure f
    where f.queue_id = _queue.id and (not f.walking or (
        f.group_id <> 0 and not exists (select 1 from lockstep.consumer_group g where g.id = f.group_id)));
    update lockstep.figure f set walking = false, dead_letters = case when f.group_id = 0 then (
        select count(*) from lockstep.dead_letter d where d.queue_id = _queue.id) else 0 end
    where f.queue_id = _queue.id;
    with grown as (
        select f.group_id, f.seqs, f.seqs - coalesce(s.seqs, f.base) as growth
        from lockstep.figure f
        left join lockstep.sample_sum s on s.queue_id = f.queue_id and s.group_id = f.group_id
        where f.queue_id = _queue.id
    ), kept as (
        insert into lockstep.sample_sum (queue_id, group_id, at, seqs) select _queue.id, g.group_id, _now, g.seqs from grown g
        on conflict (queue_id, group_id) do update set at = excluded.at, seqs = excluded.seqs
    )
    select coalesce(sum(g.growth) filter (where g.group_id = 0), 0),
           -- A group that was moved back has completed nothing.
           coalesce(sum(greatest(g.growth, 0)) filter (where g.group_id <> 0), 0)
    into _pushed, _passed from grown g;
    select s.messages, s.pending, s.oldest_at, s.steps into _read from lockstep.sample_steps(_queue) s;
    _passed := _passed + _read.messages;
    delete from lockstep.sample_sum s
    where s.queue_id = _queue.id and s.group_id <> 0 and not exists (select 1 from lockstep.consumer_group g where g.id = s.group_id);
    select count(*) into _dead from lockstep.dead_letter d where d.queue_id = _queue.id and d.failed_at >= _since and d.failed_at < _now;
    select coalesce(greatest(max(f.lag) filter (where f.group_id <> 0), _read.pending), max(f.stored)),
           case when count(*) > 1 or _read.steps > 0 then least(min(f.oldest_at) filter (where f.group_id <> 0), _read.oldest_at)
                else min(f.oldest_at) end
    into _pending, _oldest_at
    from lockstep.figure f where f.queue_id = _queue.id;
    insert into lockstep.sample (at, queue, seconds, pushed, completed, dead, pending, lag_seconds)
    values (_now, _queue.name, extract(epoch from _now - _since), _pushed, greatest(_passed - _dead, 0), _dead, _pending,
            coalesce(extract(epoch from greatest(_now - _oldest_at, interval '0')), 0))
    on conflict do nothing;
end $$;

-- Removes samples and removals older than a time, and sums of queues that are gone: at most _limit rows of each. Also
-- the positions of Spark streams that are gone, what their tasks have left behind, and the last batches of queries that
-- are gone.
create or replace function lockstep.prune_history(_seconds double precision, _limit int, _at timestamptz) returns int language plpgsql as $$
declare
    _before timestamptz := coalesce(_at, clock_timestamp()) - make_interval(secs => _seconds);
    _samples int;
    _removals int;
    _servers int;
begin
    delete from lockstep.server_sample s using (
        select o.at, o.server from lockstep.server_sample o where o.at < _before order by o.at, o.server limit _limit
    ) t where s.at = t.at and s.server = t.server;
    get diagnostics _servers = row_count;
    delete from lockstep.sample s using (
        select o.at, o.queue from lockstep.sample o where o.at < _before order by o.at, o.queue limit _limit
    ) t where s.at = t.at and s.queue = t.queue;
    get diagnostics _samples = row_count;
    delete from lockstep.removal r using (
        select o.at, o.queue, o.kind from lockstep.removal o where o.at < _before order by o.at, o.queue, o.kind limit _limit
    ) t where r.at = t.at and r.queue = t.queue and r.kind = t.kind;
    get diagnostics _removals = row_count;
    delete from lockstep.sample_sum s where not exists (select 1 from lockstep.queue q where q.id = s.queue_id);
    delete from lockstep.figure f where not exists (select 1 from lockstep.queue q where q.id = f.queue_id);
    delete from lockstep.pipeline_read r where not exists (select 1 from lockstep.queue q where q.name = r.queue);
    perform lockstep.prune_positions();
    -- Independent of a short history: a batch may run for long, and needs what it has staged and leased.
    perform lockstep.spark_prune(least(_before, coalesce(_at, clock_timestamp()) - interval '1 day'));
    perform lockstep.forget_batches(_at);
    return _samples + _removals + _servers;
end $$;
