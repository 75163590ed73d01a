-- Steps of Spark pipelines: the messages that a step rejects, and its status.
--
-- Guarantees: a rejected message becomes a dead letter of its queue in the transaction that writes its batch, once, and only
-- while it is stored.
-- Locks: partition rows by id, those of the rejected messages together with those that the batch is pushed to, before the push
-- takes its own; then dead letters.
-- Indexes: segment_uuid, run_pkey, dead_letter_message, partition's name.

-- Locks a step for a session, so that no other session runs it; held until the session ends.
create or replace function lockstep.pipeline_lock(_pipeline text, _step text) returns boolean language sql as $$
    select pg_try_advisory_lock(hashtextextended(_pipeline || '.' || _step, 7017281905))
$$;

-- Finds messages by id in some queues; leaves out those that are no longer stored.
create or replace function lockstep.pipeline_find(_queue_ids int[], _segments uuid[], _ordinals int[])
returns table (place int, queue_id int, partition_id bigint, seq bigint) language sql stable as $$
    select t.o::int, s.queue_id, r.partition_id, r.first_seq + t.ordinal - r.ordinal
    from unnest(_segments, _ordinals) with ordinality t (uuid, ordinal, o)
    -- By its UUID, whatever the planner knows about its queue.
    cross join lateral (select f.* from lockstep.segment f where f.uuid = t.uuid offset 0) s
    cross join lateral unnest(s.partition_ids, s.first_seqs, s.counts) m (partition_id, first_seq, n)
    join lockstep.run r on r.partition_id = m.partition_id and r.segment_id = s.id and r.first_seq between m.first_seq and m.first_seq + m.n - 1
    where s.queue_id = any (_queue_ids) and t.ordinal between r.ordinal and r.ordinal + (r.last_seq - r.first_seq)
$$;

-- Takes the locks of a batch: of the partitions from which messages are rejected, of the existing partitions to which
-- the attempts push, and of those under the leases. The caller pushes what dies (dead_queue.sql).
create or replace function lockstep.pipeline_open(
    _queue_ids int[], _segments uuid[], _ordinals int[], _attempts uuid[], _lease_ids uuid[]
) returns void language plpgsql as $$
begin
    perform lockstep.check_isolation();
    perform lockstep.lock_for_transaction(
        array(select q.id from lockstep.queue q join lockstep.spark_stage s on s.queue = q.name where s.attempt = any (_attempts)),
        array(select f.partition_id from lockstep.pipeline_find(_queue_ids, _segments, _ordinals) f)
        || array(
            select p.id from lockstep.spark_stage s cross join lateral unnest(s.partitions) n (name)
            cross join lateral (select q.id from lockstep.queue q where q.name = s.queue limit 1) q
            cross join lateral (select p.id from lockstep.partition p where p.queue_id = q.id and p.name = n.name limit 1) p
            where s.attempt = any (_attempts)),
        _lease_ids);
end $$;

-- Makes messages of locked partitions dead letters; returns their number. A message that is already a dead letter of
-- the group stays one.
create or replace function lockstep.pipeline_reject(
    _group text, _queue_ids int[], _segments uuid[], _ordinals int[], _errors text[], _at timestamptz
) returns bigint language sql as $$
    with dead as (
        insert into lockstep.dead_letter (queue_id, partition_id, seq, group_name, attempts, error, failed_at)
        select f.queue_id, f.partition_id, f.seq, _group, 1, _errors[f.place], coalesce(_at, clock_timestamp())
        from lockstep.pipeline_find(_queue_ids, _segments, _ordinals) f
        where not exists (
            -- One look-up per message instead of a join.
            select 1 from lockstep.dead_letter d
            where d.partition_id = f.partition_id and d.seq = f.seq and d.group_name = _group offset 0
        )
        order by f.partition_id, f.seq
        returning 1
    )
    select count(*) from dead
$$;

-- Records that a step starts, with a checkpoint. What it did under another query does not count. The query is empty
-- until a restart has named it.
create or replace function lockstep.pipeline_begin(
    _pipeline text, _step text, _sources text[], _sinks text[], _group text, _query_id text, _checkpoint text,
    _restarts bigint, _definition jsonb, _at timestamptz
) returns void language sql as $$
    insert into lockstep.pipeline_step as s (pipeline, step, sources, sinks, group_name, query_id, checkpoint, restarts, definition, started_at, seen_at)
    values (_pipeline, _step, _sources, _sinks, _group, _query_id, _checkpoint, _restarts, _definition, coalesce(_at, clock_timestamp()), coalesce(_at, clock_timestamp()))
    on conflict (pipeline, step) do update
    set sources = excluded.sources, sinks = excluded.sinks, group_name = excluded.group_name, query_id = excluded.query_id,
        checkpoint = excluded.checkpoint, definition = excluded.definition, restarts = excluded.restarts, failed_at = null,
        restart_error = case when excluded.restarts > 0 then s.restart_error end,
        started_at = case when excluded.restarts > 0 then s.started_at else excluded.started_at end, seen_at = excluded.seen_at, stopped_at = null, error = null, rows_per_second = null,
        batch_id = case when s.query_id = excluded.query_id then s.batch_id end,
        pushed = case when s.query_id = excluded.query_id then s.pushed else 0 end,
        rejected = case when s.query_id = excluded.query_id then s.rejected else 0 end,
        duplicates = case when s.query_id = excluded.query_id then s.duplicates else 0 end
$$;

-- Records a batch of a step within its commit. It has read these numbers of messages of some queues, which are sources
-- of the step from now on.
create or replace function lockstep.pipeline_batch(
    _pipeline text, _step text, _batch_id bigint, _pushed bigint, _rejected bigint, _duplicates bigint, _queues text[], _read bigint[], _at timestamptz
) returns void language sql as $$
    insert into lockstep.pipeline_read as r (pipeline, step, queue, messages)
    select _pipeline, _step, t.queue, t.n from unnest(_queues, _read) t (queue, n) where t.n > 0 order by t.queue
    on conflict (pipeline, step, queue) do update set messages = r.messages + excluded.messages;
    update lockstep.pipeline_step s
    -- A step that reads queues by pattern may have a new source.
    set sources = case when s.sources @> _queues then s.sources else array(select distinct n from unnest(s.sources || _queues) n order by n) end,
        batch_id = _batch_id, committed_at = coalesce(_at, clock_timestamp()), seen_at = coalesce(_at, clock_timestamp()),
        batch_pushed = _pushed, batch_rejected = _rejected, batch_duplicates = _duplicates,
        pushed = s.pushed + _pushed, rejected = s.rejected + _rejected, duplicates = s.duplicates + _duplicates
    where s.pipeline = _pipeline and s.step = _step
$$;

-- Forgets former streams of a step. The session is the only one that runs the step, so the last stream created on a
-- queue is its own. A step may have a stream for each of its sources.
create or replace function lockstep.pipeline_forget_former(_pipeline text, _step text) returns void language sql as $$
    select lockstep.forget_stream(f.stream_id)
    from (
        select p.stream_id
        from lockstep.spark_position p
        join lockstep.pipeline_step s on s.pipeline = _pipeline and s.step = _step
        where p.name = _pipeline || '.' || _step
        group by p.stream_id
        having bool_and(
            exists (
                select 1 from lockstep.spark_position n
                where n.name = p.name and n.queue_id = p.queue_id and n.stream_id <> p.stream_id and n.created_at > p.created_at
            )
            or (s.sources <> '{}' and not exists (select 1 from lockstep.queue q where q.id = p.queue_id and q.name = any (s.sources))))
    ) f
$$;

-- A running step reports that it is alive.
create or replace function lockstep.pipeline_seen(_pipeline text, _step text, _rows_per_second double precision, _at timestamptz) returns void language sql as $$
    update lockstep.pipeline_step s
    set seen_at = coalesce(_at, clock_timestamp()), rows_per_second = coalesce(_rows_per_second, s.rows_per_second)
    where s.pipeline = _pipeline and s.step = _step;
    select lockstep.pipeline_forget_former(_pipeline, _step)
$$;

-- Records that a step failed for a reason that may go away, and waits for its restart.
create or replace function lockstep.pipeline_failed(_pipeline text, _step text, _error text, _at timestamptz) returns void language sql as $$
    update lockstep.pipeline_step s
    set failed_at = coalesce(_at, clock_timestamp()), seen_at = coalesce(_at, clock_timestamp()), restart_error = _error
    where s.pipeline = _pipeline and s.step = _step
$$;

create or replace function lockstep.pipeline_end(_pipeline text, _step text, _error text, _at timestamptz) returns void language sql as $$
    update lockstep.pipeline_step s
    set stopped_at = coalesce(_at, clock_timestamp()), seen_at = coalesce(_at, clock_timestamp()), error = _error, rows_per_second = null
    where s.pipeline = _pipeline and s.step = _step;
    select lockstep.pipeline_forget_former(_pipeline, _step)
$$;

-- Forgets a step with its stream: its positions, its batches and its leases. Returns whether it was known.
create or replace function lockstep.pipeline_forget(_pipeline text, _step text) returns boolean language plpgsql as $$
declare
    _name text := _pipeline || '.' || _step;
    _known int := 0;
    _rows int;
begin
    perform lockstep.forget_stream(p.stream_id)
    from (select distinct p.stream_id from lockstep.spark_position p where p.name = _name) p;
    get diagnostics _known = row_count;
    perform lockstep.spark_sweep(b.sink, b.batch_id + 1, 3e9, null)
    from lockstep.spark_batch b where starts_with(b.sink, _name || '/');
    delete from lockstep.spark_batch b where starts_with(b.sink, _name || '/');
    get diagnostics _rows = row_count;
    _known := _known + _rows;
    delete from lockstep.spark_lease l where l.stream = _name;
    get diagnostics _rows = row_count;
    _known := _known + _rows;
    delete from lockstep.pipeline_read r where r.pipeline = _pipeline and r.step = _step and r.messages = r.sampled;
    delete from lockstep.pipeline_step s where s.pipeline = _pipeline and s.step = _step;
    get diagnostics _rows = row_count;
    return _known + _rows > 0;
end $$;
