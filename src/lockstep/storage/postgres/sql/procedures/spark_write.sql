-- Writes of Spark: tasks stage segments, and one commit numbers and pushes them.
--
-- Guarantees: a batch of a sink is written once, completely or not at all; seqs are dense and in commit order as with
-- every push; a transaction id is stored once; nothing is written from an attempt that the commit does not name.
-- Locks: the sink's row, the staged parts, then queue rows by name (those with a max_size, and those that get new
-- partitions), partition rows by id, cursor rows. Everything after the locks is read by later statements: this requires
-- READ COMMITTED.
-- Indexes: spark_stage_pkey, spark_stage_sink, spark_stage_age; those of a push.

-- Whether a batch is still to be written. A simultaneous commit of the same batch waits here for the first one. Raises
-- SQLSTATE LS007 if this is unknown, because the query may have been forgotten.
create or replace function lockstep.spark_begin(
    _sink text, _batch_id bigint, _messages bigint, _keep_seconds double precision, _at timestamptz
) returns boolean language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
begin
    perform lockstep.check_isolation();
    perform 1 from lockstep.spark_batch b where b.sink = _sink for no key update;
    if not found and _batch_id > 1 and lockstep.may_be_forgotten(_sink) then
        raise exception 'nothing is known any more of query %, which comes with batch %: it was silent for longer than spark_batch_seconds_max, and may have written this batch before; give it a new checkpoint, or, if it has not, another sinkId', quote_literal(_sink), _batch_id
            using errcode = 'LS007';
    end if;
    insert into lockstep.spark_batch as b (sink, batch_id, messages, messages_total, committed_at, kept_until)
    values (_sink, _batch_id, _messages, _messages, _now, _now + make_interval(secs => _keep_seconds))
    on conflict (sink) do update
    set batch_id = excluded.batch_id, messages = excluded.messages, messages_total = b.messages_total + excluded.messages, committed_at = excluded.committed_at, kept_until = excluded.kept_until
    where b.batch_id < excluded.batch_id;
    return found;
end $$;

-- Records, for the batch that a sink has just begun, how many staged messages, and how many rows in total, were
-- duplicates.
create or replace function lockstep.spark_duplicates(_sink text, _messages bigint, _duplicates bigint) returns void language sql as $$
    update lockstep.spark_batch b
    set messages = b.messages - _messages, messages_total = b.messages_total - _messages, duplicates_total = b.duplicates_total + _duplicates
    where b.sink = _sink
$$;

-- The name of a sink without the id of its query: the sinkId, the name of a step, or empty.
create or replace function lockstep.sink_name(_sink text) returns text language sql immutable as $$
    select regexp_replace(_sink, '(^|/)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$', '')
$$;

-- Whether an unknown sink may have been known before. The first batch of a query may have had no tasks, and is then not
-- recorded for its sink; under a new name no sink existed.
create or replace function lockstep.may_be_forgotten(_sink text) returns boolean language sql stable as $$
    select lockstep.sink_name(_sink) <> _sink
        and exists (select 1 from lockstep.system s where s.spark_forgotten_at is not null)
        and exists (select 1 from lockstep.spark_batch b where lockstep.sink_name(b.sink) = lockstep.sink_name(_sink))
$$;

-- Forgets queries that have been silent for too long and were followed by another query with the same name. Sinks
-- without a query, and the last query of each name, stay: their number is limited by the names that people choose.
create or replace function lockstep.forget_batches(_at timestamptz) returns void language plpgsql as $$
begin
    delete from lockstep.spark_batch b
    using (select lockstep.sink_name(o.sink) as name, max(o.committed_at) as last_at from lockstep.spark_batch o group by 1) l
    where b.kept_until <= coalesce(_at, clock_timestamp()) and l.name = lockstep.sink_name(b.sink) and b.sink <> l.name
      and b.committed_at < l.last_at;
    if found then
        perform lockstep.system(_at);
        update lockstep.system set spark_forgotten_at = coalesce(_at, clock_timestamp());
    end if;
end $$;

-- Locks the staged parts, so that they are not removed before they are pushed, and compares them with what the tasks
-- report. Then creates missing queues and partitions, and takes all locks that the push and the acks of the given
-- leases need. Raises SQLSTATE LS007 if the stage is not complete.
create or replace function lockstep.spark_open(_attempts uuid[], _parts int[], _messages bigint[], _lease_ids uuid[], _at timestamptz) returns void language plpgsql as $$
declare
    _wrong record;
    _missing record;
    _queue_ids int[];
    _partition_ids bigint[];
begin
    perform lockstep.check_isolation();
    perform 1 from lockstep.spark_stage s where s.attempt = any (_attempts) order by s.attempt, s.part for update;
    select t.attempt, t.messages, s.messages as staged into _wrong
    from unnest(_attempts, _parts, _messages) t (attempt, parts, messages)
    cross join lateral (
        select count(*) as parts, coalesce(sum(s.message_count), 0) as messages from lockstep.spark_stage s where s.attempt = t.attempt
    ) s
    where t.parts <> s.parts or t.messages <> s.messages limit 1;
    if found then
        raise exception 'a task has staged % messages, and % of them are there: the stage was removed meanwhile', _wrong.messages, _wrong.staged
            using errcode = 'LS007';
    end if;
    for _missing in
        select t.queue, array_agg(t.name) as partitions
        from (
            select distinct s.queue, n.name from lockstep.spark_stage s cross join lateral unnest(s.partitions) n (name)
            where s.attempt = any (_attempts)
        ) t
        left join lateral (
            select p.id from lockstep.queue q join lockstep.partition p on p.queue_id = q.id and p.name = t.name where q.name = t.queue limit 1
        ) p on true
        where p.id is null
        group by t.queue order by t.queue
    loop
        perform 1 from lockstep.resolve(_missing.queue, _missing.partitions, _at);
    end loop;
    select array_agg(distinct q.id), array_agg(distinct p.id) into _queue_ids, _partition_ids
    from (
        select distinct s.queue, n.name from lockstep.spark_stage s cross join lateral unnest(s.partitions) n (name)
        where s.attempt = any (_attempts)
    ) t
    cross join lateral (select q.id from lockstep.queue q where q.name = t.queue limit 1) q
    cross join lateral (select p.id from lockstep.partition p where p.queue_id = q.id and p.name = t.name limit 1) p;
    perform lockstep.lock_for_transaction(coalesce(_queue_ids, '{}'), coalesce(_partition_ids, '{}'), _lease_ids);
end $$;

-- Pushes what the attempts have staged, in the order of tasks and of their parts, and removes it from the stage. Stops
-- at a part that cannot be pushed as it is, and returns it: the caller repacks it and continues. If _trouble is null,
-- everything is done.
-- _trouble: duplicates (which of its transaction ids are stored already) | plain (the queue is encrypted by now)
-- | elsewhere (it is encrypted for another queue or other partitions, which may have been created only now)
-- Raises SQLSTATE LS003 if a queue is full, and LS001 if something is gone since spark_open.
create or replace function lockstep.spark_push(
    _attempts uuid[], _plain_allowed boolean, _at timestamptz,
    out _trouble text, out _attempt uuid, out _part int, out _duplicate_uuids int[], out _duplicate_texts int[]
) language plpgsql as $$
declare
    _stage lockstep.spark_stage;
    _queue lockstep.queue;
    _pushed record;
    _partition_ids bigint[];
begin
    for _stage in
        select s.* from lockstep.spark_stage s where s.attempt = any (_attempts) order by s.task, s.attempt, s.part
    loop
        select q.* into _queue from lockstep.queue q where q.name = _stage.queue;
        _partition_ids := array(
            select p.id from unnest(_stage.partitions) with ordinality t (name, o)
            cross join lateral (select p.id from lockstep.partition p where p.queue_id = _queue.id and p.name = t.name limit 1) p
            order by t.o);
        if _queue.encryption and _stage.codec & 4 = 0 and not _plain_allowed then
            _trouble := 'plain';
        elsif _stage.codec & 4 <> 0 and (_stage.queue_id, _stage.partition_ids) is distinct from (_queue.id, _partition_ids) then
            _trouble := 'elsewhere';
        else
            select * into _pushed from lockstep.spark_push_part(_stage, _queue, _partition_ids, _plain_allowed, _at);
            _duplicate_uuids := _pushed._duplicate_uuids;
            _duplicate_texts := _pushed._duplicate_texts;
            case _pushed._status
                when 'ok' then
                    delete from lockstep.spark_stage s where s.attempt = _stage.attempt and s.part = _stage.part;
                    continue;
                when 'duplicates' then
                    _trouble := 'duplicates';
                when 'full' then
                    raise exception 'queue % holds % of at most % pending messages; % more do not fit',
                        quote_literal(_stage.queue), _pushed._depth, _pushed._max_size, _stage.message_count using errcode = 'LS003';
                else
                    raise exception 'the queue or a partition is gone' using errcode = 'LS001';
            end case;
        end if;
        _attempt := _stage.attempt;
        _part := _stage.part;
        return;
    end loop;
end $$;

-- Pushes one part as one segment; returns what push_segments does. push_segments creates a segment without messages,
-- which is then replaced by the staged one: updating that row keeps its body in place, so that it is written only once.
create or replace function lockstep.spark_push_part(
    _stage lockstep.spark_stage, _queue lockstep.queue, _partition_ids bigint[], _plain_allowed boolean, _at timestamptz,
    out _status text, out _duplicate_uuids int[], out _duplicate_texts int[], out _depth bigint, out _max_size bigint
) language plpgsql as $$
declare
    _segment_id bigint;
    _made lockstep.segment;
    _ordinals int[] := array(select (sum(t.n) over (order by t.o) - t.n)::int from unnest(_stage.counts) with ordinality t (n, o) order by t.o);
begin
    if cardinality(_partition_ids) <> cardinality(_stage.partitions) then
        _status := 'stale';
        return;
    end if;
    select p._status, p._duplicate_uuids, p._duplicate_texts, p._depths[1], p._max_sizes[1], p._segment_ids[1]
    into _status, _duplicate_uuids, _duplicate_texts, _depth, _max_size, _segment_id
    from lockstep.push_segments(
        array[_queue.id], case when _queue.max_size > 0 then array[_queue.id] end, array[_stage.codec | 1]::smallint[], array[''::bytea],
        array[cardinality(_partition_ids)], _partition_ids, _stage.counts, _ordinals,
        row(_stage.dedup_uuids, _stage.dedup_uuid_runs, _stage.dedup_uuid_offsets,
            _stage.dedup_texts, _stage.dedup_text_runs, _stage.dedup_text_offsets,
            _stage.traces, _stage.trace_runs, _stage.trace_offsets)::lockstep.message_index,
        null, _plain_allowed, _at,
        _overtake => true,  -- other producers' waiting operations have no order relative to this
        _sealed_uuids => array[_stage.segment_uuid]
    ) p;
    if _status = 'ok' then
        delete from lockstep.segment s where s.id = _segment_id returning s.* into _made;
        update lockstep.segment s
        set id = _made.id, queue_id = _made.queue_id, uuid = _made.uuid, created_at = _made.created_at, txid = _made.txid,
            partition_ids = _made.partition_ids, first_seqs = _made.first_seqs, counts = _made.counts
        where s.id = _stage.segment_id;
    end if;
end $$;

-- A part that leaves the stage without being pushed takes its messages with it.
create or replace function lockstep.spark_unstage() returns trigger language plpgsql as $$
begin
    delete from lockstep.segment s where s.id = old.segment_id and s.queue_id = 0;
    return null;
end $$;
create or replace trigger spark_unstage after delete on lockstep.spark_stage for each row execute function lockstep.spark_unstage();

-- Records that a stream has read its current batch. The committed position does not move: Spark may request the batch
-- again until its own log contains it.
create or replace function lockstep.spark_read(_stream text, _at timestamptz) returns void language sql as $$
    update lockstep.spark_position p
    set read_base = p.planned_base, read_upto = p.planned_upto, read_segment = p.planned_segment,
        updated_at = coalesce(_at, clock_timestamp()), planned_base = null, planned_upto = null, planned_segment = null
    where p.name = _stream and p.planned_base is not null
$$;

-- Removes what dead attempts of a sink left behind, up to a batch, and what any sink left behind so long ago that it
-- will not be committed. Parts that are being committed stay.
create or replace function lockstep.spark_sweep(_sink text, _batch_id bigint, _seconds double precision, _at timestamptz) returns int language plpgsql as $$
declare
    _swept int;
begin
    with of_sink as (
        select d.attempt, d.part from lockstep.spark_stage d where d.sink = _sink and d.batch_id <= _batch_id for update skip locked
    ), old as (
        select d.attempt, d.part from lockstep.spark_stage d
        -- A subquery, because an index cannot be searched for a time that changes from row to row.
        where d.staged_at < (select coalesce(_at, clock_timestamp()) - make_interval(secs => _seconds)) for update skip locked
    )
    delete from lockstep.spark_stage s where (s.attempt, s.part) in (table of_sink union table old);
    get diagnostics _swept = row_count;
    return _swept;
end $$;

-- Removes staged parts and leases that are older than a time and no longer needed.
create or replace function lockstep.spark_prune(_before timestamptz) returns void language sql as $$
    with old as (select d.attempt, d.part from lockstep.spark_stage d where d.staged_at < _before for update skip locked)
    delete from lockstep.spark_stage s where (s.attempt, s.part) in (table old);
    delete from lockstep.spark_lease l where l.leased_at < _before;
$$;
