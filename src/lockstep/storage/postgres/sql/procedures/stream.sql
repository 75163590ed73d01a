-- Stream queries: registration, and the parts of a cycle.
--
-- Guarantees: cycles of one query on one partition come one after the other; a reset waits for all of them.
-- Locks: the query row (shared by cycles), then an advisory lock on query and partition; only then those of the push
-- and the ack: queue rows, partition rows, cursor rows. State is written under the partition lock, so that deleting the
-- partition finds all of it.

-- Finds a query by its name or creates it. Without an id in the result, it is registered with another configuration and
-- was left unchanged.
create or replace function lockstep.register_stream_query(
    _name text, _source_queue text, _sink_queue text, _config_hash text, _reset boolean, _at timestamptz,
    out _query_id bigint, out _fresh boolean, out _known_hash text, out _known_source text
) language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _query lockstep.stream_query;
begin
    insert into lockstep.stream_query (name, source_queue, sink_queue, config_hash, created_at, configured_at)
    values (_name, _source_queue, _sink_queue, _config_hash, _now, _now)
    on conflict (name) do nothing returning id into _query_id;
    _fresh := found;
    if _fresh then
        return;
    end if;
    select s.* into _query from lockstep.stream_query s where s.name = _name for update;
    _known_hash := _query.config_hash;
    _known_source := _query.source_queue;
    if not _reset and (_known_hash, _known_source) <> (_config_hash, _source_queue) then
        return;
    end if;
    _query_id := _query.id;
    update lockstep.stream_query s
    set source_queue = _source_queue, sink_queue = _sink_queue, config_hash = _config_hash, configured_at = _now
    where s.id = _query_id;
    if _reset then
        delete from lockstep.stream_state s where s.query_id = _query_id;
    end if;
end $$;

-- Begins a cycle: after this, no other session is in a cycle of this query on this partition. False: there is no such
-- query.
create or replace function lockstep.begin_cycle(_query_id bigint, _partition_id bigint) returns boolean language plpgsql as $$
begin
    perform 1 from lockstep.stream_query s where s.id = _query_id for share;
    if not found then
        return false;
    end if;
    perform pg_advisory_xact_lock(hashtextextended(format('lockstep.stream_state %s %s', _query_id, _partition_id), 0));
    return true;
end $$;

-- Changes the state of a query on a locked partition. A key occurs once.
create or replace function lockstep.change_state(
    _query_id bigint, _partition_id bigint, _keys text[], _values text[], _window_ends double precision[], _deleted text[], _at timestamptz
) returns void language plpgsql as $$
begin
    insert into lockstep.stream_state (query_id, partition_id, key, value, window_end, updated_at)
    select _query_id, _partition_id, t.key, t.value::json, t.window_end, coalesce(_at, clock_timestamp())
    from unnest(_keys, _values, _window_ends) t (key, value, window_end)
    on conflict (query_id, partition_id, key) do update
    set value = excluded.value, window_end = excluded.window_end, updated_at = excluded.updated_at;
    delete from lockstep.stream_state s where s.query_id = _query_id and s.partition_id = _partition_id and s.key = any (_deleted);
end $$;

-- The ack of a cycle on a locked partition, like lockstep.ack_items; but a completed ack ends the lease only with
-- _release, and otherwise keeps it (rules.keep_lease), even if all of it is done.
create or replace function lockstep.stream_ack(
    _lease_id uuid, _partition_id bigint, _transaction_id text, _group text, _status text, _error text, _release boolean, _at timestamptz
) returns table (
    item int, error text, noop boolean, released boolean, dead boolean, messages bigint, queue_name text, partition_name text
) language plpgsql as $$
#variable_conflict use_column
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _held lockstep.cursor;
    _queue lockstep.queue;
    _outcome record;
    _live boolean;
begin
    select c.* into _held
    from lockstep.partition p
    join lockstep.consumer_group g on g.queue_id = p.queue_id and g.name = _group
    join lockstep.cursor c on c.partition_id = p.id and c.group_id = g.id
    where p.id = _partition_id
    for no key update of c;
    select * into _outcome from lockstep.ack_items(
        array[_lease_id], array[_partition_id], array[null]::bigint[], array[_transaction_id], array[_group], array[_status], array[_error],
        array[null]::timestamptz[], _now);
    _live := _held.lease_id is not null and _held.due_at > _now;
    if _live and _status = 'completed' and _outcome.error is null and _outcome.released <> _release then
        select q.* into _queue from lockstep.partition p join lockstep.queue q on q.id = p.queue_id where p.id = _partition_id;
        update lockstep.cursor c
        set lease_id = case when not _release then _held.lease_id end,
            lease_to = case when not _release then greatest(_held.lease_to, c.acked) end,
            leased_at = case when not _release then _held.leased_at end,
            due_at = case when not _release then _held.due_at
                else lockstep.due_at(_partition_id, c.acked, _queue.delay_seconds, _queue.window_seconds, _now) end
        where c.partition_id = _partition_id and c.group_id = _held.group_id;
    end if;
    return query select _outcome.item, _outcome.error, _outcome.noop,
        case when _live and _status = 'completed' and _outcome.error is null then _release else _outcome.released end,
        _outcome.dead, _outcome.messages, _outcome.queue_name, _outcome.partition_name;
end $$;
