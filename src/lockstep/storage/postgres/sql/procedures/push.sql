-- Push: one segment per queue, one run per partition, numbered by lock-then-look.
--
-- Guarantees: seqs are dense and in commit order per partition; a transaction id is stored once; a queue with a
-- max_size never exceeds it. Nothing is written unless _status is 'ok'.
-- Locks: rows of queues that have a max_size (by name), then partition rows (by id), then cursor rows of drained
-- partitions. The partition rows are locked and never updated. Everything after the locks is read by later statements,
-- whose snapshots see every push that committed before: this requires READ COMMITTED.
-- Indexes: partition_pkey, run_pkey (index-only, backward), dedup pkeys, cursor_pkey.
--
-- _limited names the queues that have a max_size, as far as the caller knows. Queue i has _run_counts[i] of the runs,
-- in order. A queue with codec 0 takes its messages from _plain, in order; the others have a body. _expires_at has a
-- value for each message of all queues, in order, or is null. _sealed_uuids[i] is the segment id of queue i if its body
-- is encrypted for that segment.
-- _lock_ms: the longest wait for each lock, instead of the session's lock_timeout.
-- _overtake: the push may overtake operations that wait for its partitions; otherwise, if there are any, _behind names
-- the partitions.
-- _status: ok | stale (an id is gone or an option changed: resolve again) | behind | duplicates | full
create or replace function lockstep.push_segments(
    _queue_ids int[], _limited int[], _codecs smallint[], _bodies bytea[], _run_counts int[],
    _partition_ids bigint[], _counts int[], _ordinals int[],
    _index lockstep.message_index, _plain lockstep.plain_columns,
    _plain_allowed boolean, _at timestamptz, _expires_at timestamptz[] default null, _lock_ms int default null,
    _overtake boolean default false, _sealed_uuids uuid[] default null,
    out _status text, out _created_at timestamptz, out _segment_ids bigint[], out _segment_uuids uuid[], out _first_seqs bigint[],
    out _duplicate_uuids int[], out _duplicate_texts int[], out _duplicate_seqs bigint[], out _duplicate_ids uuid[],
    out _depths bigint[], out _max_sizes bigint[], out _behind bigint[]
) language plpgsql as $$
declare
    _locked int;
    _first_run int := 1;
    _first_plain int := 1;
    _first_message int := 1;
    _last_run int;
    _last_plain int;
    _messages int;
    _segment_uuid uuid;
    _segment_id bigint;
    _has_group boolean[];
    _stale boolean;
    -- Many transaction ids are stored without a look: a unique index that accepts one has looked, and a second look for each
    -- costs more than a subtransaction for all. How full a queue is comes after duplicates, so there they are looked for.
    _ids_at_once boolean := _limited is null and coalesce(cardinality(_index.uuids), 0) + coalesce(cardinality(_index.texts), 0) >= 16;
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at] || _expires_at), lockstep.need_places('{push}', _queue_ids, _partition_ids); end if;
    if current_setting('transaction_isolation') <> 'read committed' then perform lockstep.check_isolation(); end if;
    if _lock_ms is not null then perform set_config('lock_timeout', _lock_ms::text, true); end if;
    if _limited is not null then
        perform 1 from lockstep.queue q where q.id = any (_limited) and q.id = any (_queue_ids) order by q.name for no key update;
    end if;
    perform 1 from lockstep.partition p where p.id = any (_partition_ids) order by p.id for no key update;
    get diagnostics _locked = row_count;
    -- Stale also covers a max_size that the caller did not know (its row must be locked before the partitions are), and
    -- unknown encryption. The partitions of a deleted queue may still exist; its row does not.
    select array_agg(nullif(q.max_size, 0) order by t.o),
           array_agg(exists (select 1 from lockstep.consumer_group g where g.queue_id = q.id) order by t.o),
           bool_or((q.max_size > 0 and q.id <> all (coalesce(_limited, '{}')))
                   or (q.encryption and t.codec & 4 = 0 and not _plain_allowed))
    into _max_sizes, _has_group, _stale
    from unnest(_queue_ids, _codecs) with ordinality t (id, codec, o)
    cross join lateral (select q.* from lockstep.queue q where q.id = t.id limit 1) q;
    if _locked <> cardinality(_partition_ids) or _stale or cardinality(_max_sizes) is distinct from cardinality(_queue_ids) then
        _status := 'stale';
        return;
    end if;
    -- One probe of an index that is empty unless the server was busy; finding out which partitions costs more.
    if not _overtake and exists (select 1 from lockstep.operation_lane l where l.partition_id = any (_partition_ids)) then
        _behind := lockstep.partitions_behind(_partition_ids);
        _status := 'behind';
        return;
    end if;
    if not _ids_at_once and (_index.uuids is not null or _index.texts is not null) then
        select d._duplicate_uuids, d._duplicate_texts, d._duplicate_seqs, d._duplicate_ids
        into _duplicate_uuids, _duplicate_texts, _duplicate_seqs, _duplicate_ids
        from lockstep.find_duplicates(_partition_ids, _index.uuids, _index.uuid_runs, _index.texts, _index.text_runs) d;
        if _duplicate_seqs is not null then
            _status := 'duplicates';
            return;
        end if;
    end if;
    if _limited is not null then
        select r._full, r._depths into _locked, _depths from lockstep.take_room(_queue_ids, _max_sizes, _run_counts, _counts) r;
        if _locked > 0 then
            _status := 'full';
            return;
        end if;
    end if;

    select array_agg(coalesce(l.last_seq, 0) + 1 order by t.o) into _first_seqs
    from unnest(_partition_ids) with ordinality t (id, o)
    left join lateral (
        select r.last_seq from lockstep.run r where r.partition_id = t.id order by r.first_seq desc limit 1
    ) l on true;
    if _ids_at_once then
        begin
            perform lockstep.index_ids(_index, _partition_ids, _first_seqs);
        exception when unique_violation then
            _status := 'duplicates';
        end;
        if _status = 'duplicates' then
            select d._duplicate_uuids, d._duplicate_texts, d._duplicate_seqs, d._duplicate_ids
            into _duplicate_uuids, _duplicate_texts, _duplicate_seqs, _duplicate_ids
            from lockstep.find_duplicates(_partition_ids, _index.uuids, _index.uuid_runs, _index.texts, _index.text_runs) d;
            if _duplicate_seqs is null then
                raise exception 'a transaction id is twice among those of a partition' using errcode = 'unique_violation';
            end if;
            _first_seqs := null;
            return;
        end if;
    end if;
    _created_at := coalesce(_at, clock_timestamp());

    for _i in 1 .. cardinality(_queue_ids) loop
        _last_run := _first_run + _run_counts[_i] - 1;
        _messages := _ordinals[_last_run] + _counts[_last_run];
        _last_plain := case when _codecs[_i] = 0 then _first_plain + _messages - 1 end;
        _segment_uuid := coalesce(_sealed_uuids[_i], lockstep.segment_uuid());
        insert into lockstep.segment (
            queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, body,
            payloads, transaction_ids, trace_ids, kinds, refs, encodings, headers, producer_subs, expires_at
        ) values (
            _queue_ids[_i], _segment_uuid, _created_at, _codecs[_i], _messages,
            _partition_ids[_first_run:_last_run], _first_seqs[_first_run:_last_run], _counts[_first_run:_last_run], _bodies[_i],
            _plain.payloads[_first_plain:_last_plain], _plain.transaction_ids[_first_plain:_last_plain],
            _plain.trace_ids[_first_plain:_last_plain], _plain.kinds[_first_plain:_last_plain], _plain.refs[_first_plain:_last_plain],
            _plain.encodings[_first_plain:_last_plain], _plain.headers[_first_plain:_last_plain],
            _plain.producer_subs[_first_plain:_last_plain],
            _expires_at[_first_message:_first_message + _messages - 1]
        ) returning id into _segment_id;
        _segment_ids[_i] := _segment_id;
        _segment_uuids[_i] := _segment_uuid;
        insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
        select t.partition_id, t.first_seq, t.first_seq + t.n - 1, _segment_id, t.ordinal
        from unnest(
            _partition_ids[_first_run:_last_run], _first_seqs[_first_run:_last_run],
            _counts[_first_run:_last_run], _ordinals[_first_run:_last_run]
        ) t (partition_id, first_seq, n, ordinal);
        if _has_group[_i] then
            perform lockstep.wake(_queue_ids[_i], _partition_ids[_first_run:_last_run], _first_seqs[_first_run:_last_run], _created_at);
        end if;
        _first_run := _last_run + 1;
        _first_plain := coalesce(_last_plain + 1, _first_plain);
        _first_message := _first_message + _messages;
    end loop;

    if not _ids_at_once and (_index.uuids is not null or _index.texts is not null) then
        perform lockstep.index_ids(_index, _partition_ids, _first_seqs);
    end if;
    if _index.traces is not null then
        perform lockstep.index_traces(_index, _partition_ids, _first_seqs);
    end if;
    _status := 'ok';
end $$;

-- Makes the messages of new runs findable by transaction id and by trace. Run i is of _partition_ids[i] and begins at
-- _first_seqs[i].
create or replace function lockstep.index_messages(_index lockstep.message_index, _partition_ids bigint[], _first_seqs bigint[])
returns void language plpgsql as $$
begin
    perform lockstep.index_ids(_index, _partition_ids, _first_seqs), lockstep.index_traces(_index, _partition_ids, _first_seqs);
end $$;

-- The same by transaction id alone. Raises unique_violation for one that the partition has seen.
create or replace function lockstep.index_ids(_index lockstep.message_index, _partition_ids bigint[], _first_seqs bigint[])
returns void language plpgsql as $$
begin
    if _index.uuids is not null then
        insert into lockstep.dedup_uuid (partition_id, transaction_id, seq)
        select _partition_ids[t.run], t.id, _first_seqs[t.run] + t.o from unnest(_index.uuids, _index.uuid_runs, _index.uuid_offsets) t (id, run, o);
    end if;
    if _index.texts is not null then
        insert into lockstep.dedup_text (partition_id, transaction_id, seq)
        select _partition_ids[t.run], t.id, _first_seqs[t.run] + t.o from unnest(_index.texts, _index.text_runs, _index.text_offsets) t (id, run, o);
    end if;
end $$;

create or replace function lockstep.index_traces(_index lockstep.message_index, _partition_ids bigint[], _first_seqs bigint[])
returns void language plpgsql as $$
begin
    if _index.traces is not null then
        insert into lockstep.trace_index (trace_id, partition_id, seq)
        select t.id, _partition_ids[t.run], _first_seqs[t.run] + t.o from unnest(_index.traces, _index.trace_runs, _index.trace_offsets) t (id, run, o);
    end if;
end $$;

-- push_segments for the common case: messages for one partition of a queue without a max_size, without transaction ids
-- or trace ids, and, if plain, with nothing but payloads. Saves two statements and all work on arrays. Guarantees,
-- locks and _status are those of push_segments.
create or replace function lockstep.push_run(
    _queue_id int, _partition_id bigint, _codec smallint, _count int, _body bytea, _payloads bytea[], _plain_allowed boolean,
    _at timestamptz, _lock_ms int, _overtake boolean,
    out _status text, out _created_at timestamptz, out _segment_id bigint, out _segment_uuid uuid, out _first_seq bigint
) language plpgsql as $$
declare
    _has_group boolean;
    _stale boolean;
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.need_places('{push}', array[_queue_id], array[_partition_id]); end if;
    if current_setting('transaction_isolation') <> 'read committed' then perform lockstep.check_isolation(); end if;
    if _lock_ms is not null then perform set_config('lock_timeout', _lock_ms::text, true); end if;
    perform 1 from lockstep.partition p where p.id = _partition_id for no key update;
    if not found then
        _status := 'stale';
        return;
    end if;
    select q.max_size > 0 or (q.encryption and _codec & 4 = 0 and not _plain_allowed),
           exists (select 1 from lockstep.consumer_group g where g.queue_id = q.id),
           coalesce((select r.last_seq from lockstep.run r where r.partition_id = _partition_id order by r.first_seq desc limit 1), 0) + 1
    into _stale, _has_group, _first_seq
    from lockstep.queue q where q.id = _queue_id;
    if _stale is distinct from false then
        _status := 'stale';
        return;
    end if;
    -- A separate statement: as part of the previous one it cost ten times as much.
    if not _overtake and exists (select 1 from lockstep.operation_lane l where l.partition_id = _partition_id) then
        _status := 'behind';
        return;
    end if;
    _created_at := coalesce(_at, clock_timestamp());
    _segment_uuid := lockstep.segment_uuid();
    insert into lockstep.segment (queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, body, payloads)
    values (_queue_id, _segment_uuid, _created_at, _codec, _count, array[_partition_id], array[_first_seq], array[_count], _body, _payloads)
    returning id into _segment_id;
    insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
    values (_partition_id, _first_seq, _first_seq + _count - 1, _segment_id, 0);
    if _has_group then
        perform lockstep.wake(_queue_id, array[_partition_id], array[_first_seq], _created_at);
    end if;
    _status := 'ok';
end $$;

-- The same for several partitions of one queue, under the same conditions, with a body. _looked_from[i] is the start of
-- a run of the partition, 0 if the caller knows none: earlier runs need not be read, if it still exists.
create or replace function lockstep.push_runs(
    _queue_id int, _partition_ids bigint[], _looked_from bigint[], _counts int[], _ordinals int[], _codec smallint, _body bytea, _plain_allowed boolean,
    _at timestamptz, _lock_ms int, _overtake boolean,
    out _status text, out _created_at timestamptz, out _segment_id bigint, out _segment_uuid uuid, out _first_seqs bigint[], out _behind bigint[]
) language plpgsql as $$
declare
    _runs int := cardinality(_partition_ids);
    _locked int;
    _has_group boolean;
    _stale boolean;
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.need_places('{push}', array[_queue_id], _partition_ids); end if;
    if current_setting('transaction_isolation') <> 'read committed' then perform lockstep.check_isolation(); end if;
    if _lock_ms is not null then perform set_config('lock_timeout', _lock_ms::text, true); end if;
    perform 1 from lockstep.partition p where p.id = any (_partition_ids) order by p.id for no key update;
    get diagnostics _locked = row_count;
    select q.max_size > 0 or (q.encryption and _codec & 4 = 0 and not _plain_allowed),
           exists (select 1 from lockstep.consumer_group g where g.queue_id = q.id)
    into _stale, _has_group
    from lockstep.queue q where q.id = _queue_id;
    _status := case
        when _locked <> _runs or _stale is distinct from false then 'stale'
        when not _overtake and exists (select 1 from lockstep.operation_lane l where l.partition_id = any (_partition_ids)) then 'behind'
    end;
    if _status is not null then
        _behind := case when _status = 'behind' then lockstep.partitions_behind(_partition_ids) end;
        return;
    end if;
    _first_seqs := array(
        select 1 + coalesce(
            (select r.last_seq from lockstep.run r where r.partition_id = t.id and r.first_seq >= t.looked_from order by r.first_seq desc limit 1),
            (select r.last_seq from lockstep.run r where r.partition_id = t.id order by r.first_seq desc limit 1), 0)
        from unnest(_partition_ids, _looked_from) t (id, looked_from)
    );
    _created_at := coalesce(_at, clock_timestamp());
    _segment_uuid := lockstep.segment_uuid();
    insert into lockstep.segment (queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, body)
    values (_queue_id, _segment_uuid, _created_at, _codec, _ordinals[_runs] + _counts[_runs], _partition_ids, _first_seqs, _counts, _body)
    returning id into _segment_id;
    insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
    select t.partition_id, t.first_seq, t.first_seq + t.n - 1, _segment_id, t.ordinal
    from unnest(_partition_ids, _first_seqs, _counts, _ordinals) t (partition_id, first_seq, n, ordinal);
    if _has_group then
        perform lockstep.wake(_queue_id, _partition_ids, _first_seqs, _created_at);
    end if;
    _status := 'ok';
end $$;

-- The partitions for which operations wait.
create or replace function lockstep.partitions_behind(_partition_ids bigint[]) returns bigint[] language sql stable as $$
    select array(select t.id from unnest(_partition_ids) t (id) where exists (select 1 from lockstep.operation_lane l where l.partition_id = t.id))
$$;

-- Raises unless the transaction is READ COMMITTED. Pushes check that before they call it: the call costs more than the
-- check.
create or replace function lockstep.check_isolation() returns void language plpgsql stable as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'a push needs a READ COMMITTED transaction, this one is %', current_setting('transaction_isolation')
            using errcode = 'LS002';
    end if;
end $$;

-- The transaction ids that a locked partition already has. Free of races: adding one requires the partition lock.
create or replace function lockstep.find_duplicates(
    _partition_ids bigint[], _uuids uuid[], _uuid_runs int[], _texts text[], _text_runs int[],
    out _duplicate_uuids int[], out _duplicate_texts int[], out _duplicate_seqs bigint[], out _duplicate_ids uuid[]
) language plpgsql stable as $$
declare
    _found_in bigint[];
begin
    select array_agg(t.i::int order by t.i), array_agg(d.seq order by t.i), array_agg(d.partition_id order by t.i)
    into _duplicate_uuids, _duplicate_seqs, _found_in
    from unnest(_uuids, _uuid_runs) with ordinality t (id, run, i)
    cross join lateral (
        select d.partition_id, d.seq from lockstep.dedup_uuid d
        where d.partition_id = _partition_ids[t.run] and d.transaction_id = t.id limit 1
    ) d;
    if _texts is not null then
        select array_agg(t.i::int order by t.i), _duplicate_seqs || array_agg(d.seq order by t.i), _found_in || array_agg(d.partition_id order by t.i)
        into _duplicate_texts, _duplicate_seqs, _found_in
        from unnest(_texts, _text_runs) with ordinality t (id, run, i)
        cross join lateral (
            select d.partition_id, d.seq from lockstep.dedup_text d
            where d.partition_id = _partition_ids[t.run] and d.transaction_id = t.id limit 1
        ) d;
    end if;
    if _duplicate_seqs is null then
        return;
    end if;
    select array_agg(lockstep.message_id(s.uuid, (r.ordinal + t.seq - r.first_seq)::int) order by t.o) into _duplicate_ids
    from unnest(_found_in, _duplicate_seqs) with ordinality t (partition_id, seq, o)
    left join lateral lockstep.next_run(t.partition_id, t.seq - 1) r on true
    left join lockstep.segment s on s.id = r.segment_id;
end $$;

-- For the queues with a max_size (their rows are locked): checks for room for this push, and counts it if there is
-- room. Returns in how many queues there is none, and how many messages are pending: after the push, or before it if
-- the queue is full.
create or replace function lockstep.take_room(
    _queue_ids int[], _max_sizes bigint[], _run_counts int[], _counts int[], out _full int, out _depths bigint[]
) language plpgsql as $$
declare
    _new bigint[];
    _first_run int := 1;
begin
    for _i in 1 .. cardinality(_queue_ids) loop
        _new[_i] := (select sum(n) from unnest(_counts[_first_run:_first_run + _run_counts[_i] - 1]) n);
        _first_run := _first_run + _run_counts[_i];
        _depths[_i] := case when _max_sizes[_i] is not null then lockstep.pending(_queue_ids[_i]) end;
    end loop;
    select count(*) into _full from unnest(_depths, _new, _max_sizes) t (depth, new, max_size) where t.depth + t.new > t.max_size;
    if _full > 0 then
        return;
    end if;
    insert into lockstep.depth as d (queue_id, group_id, slot, pending)
    select t.id, g.id, 0, t.new
    from unnest(_queue_ids, _new, _max_sizes) t (id, new, max_size)
    cross join lateral (select 0 as id union all select g.id from lockstep.consumer_group g where g.queue_id = t.id) g
    where t.max_size is not null
    on conflict (queue_id, group_id, slot) do update set pending = d.pending + excluded.pending;
    select array_agg(t.depth + t.new order by t.o) into _depths from unnest(_depths, _new) with ordinality t (depth, new, o);
end $$;

-- Makes drained cursors of locked partitions due, and delays others if a window is open (rules.due_after_push). A busy
-- partition costs one probe per group. Groups that lack a cursor there get one, before the messages from _first_seqs on
-- (group.sql).
create or replace function lockstep.wake(_queue_id int, _partition_ids bigint[], _first_seqs bigint[], _created_at timestamptz) returns void language plpgsql as $$
declare
    _delay_seconds int;
    _window_seconds int;
    _unplaced boolean;
begin
    select q.delay_seconds, q.window_seconds,
           exists (select 1 from lockstep.consumer_group g where g.queue_id = q.id and g.placed_upto is not null)
    into _delay_seconds, _window_seconds, _unplaced
    from lockstep.queue q where q.id = _queue_id;
    if _unplaced then
        perform lockstep.place(_queue_id, null, _partition_ids, _first_seqs, _created_at);
    end if;
    if _window_seconds > 0 then
        update lockstep.cursor c set due_at = greatest(c.due_at, _created_at + make_interval(secs => _window_seconds))
        where c.partition_id = any (_partition_ids) and c.due_at is not null and c.lease_id is null;
    end if;
    update lockstep.cursor c
    set due_at = _created_at + make_interval(secs => greatest(_delay_seconds, _window_seconds))
    where c.partition_id = any (_partition_ids) and c.due_at is null;
end $$;

-- Pushes one message from SQL: for psql, triggers, and transactions of applications. Returns the message's id, or the
-- first one's if the transaction id is a duplicate. Visible to consumers after commit, in order with all other pushes.
-- Waiting pops in every process are notified when it is committed; with notify => false they find it within a second.
-- PostgreSQL serializes the commits of transactions that notify, and sends identical notifications only once.
-- Raises SQLSTATE LS003 if the queue is full, LS008 if an earlier push to the partition still waits to be applied.
-- Sizes are limited by the default settings of a push, because the settings of servers are unknown here.
-- The plan setting is for foreign sessions, which would keep using a plan made while a table was empty.
create or replace function lockstep.push(
    queue text, partition text, payload jsonb, transaction_id text default null, trace_id uuid default null,
    kind text default null, reference text default null, headers jsonb default null, notify boolean default true
) returns uuid language plpgsql set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    _resolved record;
    _pushed record;
    _payload bytea := convert_to(payload::text, 'UTF8');
    _partition text;
    _is_uuid boolean := transaction_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$';
begin
    if not lockstep.is_trusted() then perform lockstep.need_names('{push}', array[queue]); end if;
    perform lockstep.check_name('queue', queue), lockstep.check_name('partition', partition);
    perform lockstep.check_isolation();
    if payload is null then
        raise exception 'payload must not be null; a JSON null is ''null''::jsonb' using errcode = 'LS004';
    end if;
    if transaction_id = '' or length(transaction_id) > 255 then
        raise exception 'transaction_id must have 1 to 255 characters' using errcode = 'LS004';
    end if;
    perform lockstep.check_size('payload', octet_length(_payload), 16777216), lockstep.check_size('kind', length(kind), 255),
            lockstep.check_size('reference', length(reference), 2000), lockstep.check_size('headers', octet_length(headers::text), 16384);
    if headers is not null and (jsonb_typeof(headers) <> 'object' or jsonb_path_exists(headers, '$.* ? (@.type() != "string")')) then
        raise exception 'headers must be an object of strings' using errcode = 'LS004';
    end if;
    for _attempt in 1 .. 20 loop
        _partition := case when partition = 'Default' then coalesce(lockstep.balanced_partition(queue, transaction_id), partition) else partition end;
        begin
            select * into _resolved from lockstep.resolve(queue, array[_partition]);
        exception when sqlstate 'LS001' then
            continue;  -- just deleted
        end;
        if _resolved.encryption then
            raise exception 'queue % is encrypted; push to it through Lockstep', queue using errcode = 'LS004';
        end if;
        select * into _pushed from lockstep.push_segments(
            array[_resolved.queue_id], case when _resolved.limited then array[_resolved.queue_id] end, array[0]::smallint[], array[null]::bytea[], array[1], _resolved.partition_ids, array[1], array[0],
            row(case when _is_uuid then array[transaction_id::uuid] end, array[1], array[0],
                case when not _is_uuid then array[transaction_id] end, array[1], array[0],
                case when trace_id is not null then array[trace_id] end, array[1], array[0])::lockstep.message_index,
            row(array[_payload], case when transaction_id is not null then array[transaction_id] end,
                case when trace_id is not null then array[trace_id] end, case when kind is not null then array[kind] end,
                case when reference is not null then array[reference] end, null,
                case when headers is not null then array[convert_to(headers::text, 'UTF8')] end, null)::lockstep.plain_columns,
            false, null
        );
        case _pushed._status
            when 'ok' then
                if notify then
                    perform lockstep.notify_pushed(queue);
                end if;
                return _pushed._segment_uuids[1];
            when 'duplicates' then
                return _pushed._duplicate_ids[1];
            when 'full' then
                raise exception 'queue % holds % of at most % pending messages; 1 more do not fit',
                    quote_literal(queue), _pushed._depths[1], _pushed._max_sizes[1] using errcode = 'LS003';
            when 'behind' then
                raise exception 'earlier pushes to partition % of queue % wait to be applied; try again later', _partition, queue using errcode = 'LS008';
            else
                null;  -- stale: the queue was just deleted, or its max_size set
        end case;
    end loop;
    raise exception 'queue % kept changing during the push', queue using errcode = 'LS001';
end $$;

-- The partition for a message that names none, or 'Default', in a balanced queue: of two chosen at random, the one with
-- fewer pending messages. A transaction id determines the partition (core/balance.py), so that duplicates are found.
-- Null if the queue is not balanced.
create or replace function lockstep.balanced_partition(_queue text, _transaction_id text) returns text language plpgsql as $$
declare
    _queue_id int;
    _partitions int;
    _first int;
    _second int;
begin
    if not lockstep.is_trusted() then perform lockstep.need_names('{push}', array[_queue]); end if;
    select q.id, q.partitions into _queue_id, _partitions from lockstep.queue q where q.name = _queue and q.partitions > 0;
    if not found then
        return null;
    elsif _transaction_id is not null then
        return (('x' || left(md5(_transaction_id), 8))::bit(32)::bigint % _partitions)::text;
    end if;
    _first := floor(random() * _partitions);
    _second := (_first + 1 + floor(random() * greatest(_partitions - 1, 1))::int) % _partitions;
    return coalesce((
        select p.name
        from lockstep.partition p
        cross join lateral (
            select coalesce(max(lockstep.lag(c.partition_id, c.acked)), lockstep.lag(p.id, lockstep.start_of(p.id))) as pending
            from lockstep.cursor c where c.partition_id = p.id
        ) c
        where p.queue_id = _queue_id and p.name = any (array[_first::text, _second::text])
        order by c.pending, p.name = _second::text limit 1
    ), _first::text);
end $$;

create or replace function lockstep.check_name(_what text, _name text) returns void language plpgsql immutable as $$
begin
    if _name is null or _name = '' or length(_name) > 255 or _name ~ '[\x01-\x1f\x7f-\x9f\u2028\u2029]' then
        raise exception '% must have 1 to 255 characters, none of them a control character', _what using errcode = 'LS004';
    end if;
end $$;

-- The size is in bytes of UTF-8, or in characters of a text; a null size means no value.
create or replace function lockstep.check_size(_what text, _size int, _most int) returns void language plpgsql immutable as $$
begin
    if _size > _most then
        raise exception '% is too large: % of at most %', _what, _size, _most using errcode = 'LS004';
    end if;
end $$;
