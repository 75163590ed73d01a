-- Positions in a partition: which messages are stored where, and when a cursor is due. All functions are read-only,
-- with one or two index probes each.

-- The seq of the last stored message; null if none is stored. Removed runs that touch are merged, so the backward scan
-- passes at most one of them.
create or replace function lockstep.last_stored(_partition_id bigint) returns bigint language sql stable parallel safe as $$
    select r.last_seq from lockstep.run r
    where r.partition_id = _partition_id and r.segment_id is not null
    order by r.first_seq desc limit 1
$$;

-- The seq of the last message, stored or removed; 0 for a new partition.
create or replace function lockstep.last_seq(_partition_id bigint) returns bigint language sql stable parallel safe as $$
    select coalesce((
        select r.last_seq from lockstep.run r where r.partition_id = _partition_id order by r.first_seq desc limit 1
    ), 0)
$$;

-- The run that holds the first stored message after _acked; no row if there is none.
create or replace function lockstep.next_run(_partition_id bigint, _acked bigint) returns setof lockstep.run language sql stable parallel safe as $$
    select * from (
        (select r.* from lockstep.run r
        where r.partition_id = _partition_id and r.first_seq <= _acked + 1
        order by r.first_seq desc limit 1)
        union all
        (select r.* from lockstep.run r
        where r.partition_id = _partition_id and r.first_seq > _acked + 1
        order by r.first_seq limit 2)
    ) r
    where r.segment_id is not null and r.last_seq > _acked
    order by r.first_seq limit 1
$$;

-- The first stored seq after _acked; null if there is none.
create or replace function lockstep.next_seq(_partition_id bigint, _acked bigint) returns bigint language sql stable parallel safe as $$
    select greatest(r.first_seq, _acked + 1) from lockstep.next_run(_partition_id, _acked) r
$$;

-- The position before everything stored: the start of the partition.
create or replace function lockstep.start_of(_partition_id bigint) returns bigint language sql stable parallel safe as $$
    select coalesce(lockstep.next_seq(_partition_id, 0) - 1, lockstep.last_seq(_partition_id))
$$;

-- The last seq created at or before _time (only before it, if _strictly); the start if there is none.
create or replace function lockstep.seq_at(_partition_id bigint, _time timestamptz, _strictly boolean) returns bigint language sql stable as $$
    select coalesce((
        select r.last_seq from lockstep.run r
        cross join lateral (select s.created_at from lockstep.segment s where s.id = r.segment_id limit 1) s
        where r.partition_id = _partition_id and (s.created_at < _time or (s.created_at = _time and not _strictly))
        order by r.first_seq desc limit 1
    ), lockstep.start_of(_partition_id))
$$;

-- The last of the consecutive messages after _acked created before _time; null if the next one is younger. Reads no
-- further, because many younger messages may follow.
create or replace function lockstep.waited_upto(_partition_id bigint, _acked bigint, _time timestamptz) returns bigint language plpgsql stable as $$
declare
    _run record;
    _upto bigint;
begin
    for _run in
        select r.last_seq, s.created_at
        from lockstep.run r cross join lateral (select s.created_at from lockstep.segment s where s.id = r.segment_id limit 1) s
        where r.partition_id = _partition_id and r.last_seq > _acked
          and r.first_seq >= coalesce(
              (select f.first_seq from lockstep.run f where f.partition_id = _partition_id and f.first_seq <= _acked + 1 order by f.first_seq desc limit 1), 0)
        order by r.first_seq
    loop
        exit when _run.created_at >= _time;
        _upto := _run.last_seq;
    end loop;
    return _upto;
end $$;

-- The number of stored messages with a seq in (_after, _upto]: the distance minus what was removed in between.
create or replace function lockstep.stored_between(_partition_id bigint, _after bigint, _upto bigint) returns bigint language sql stable parallel safe as $$
    select greatest(_upto - _after, 0) - coalesce((
        select sum(least(r.last_seq, _upto) - greatest(r.first_seq, _after + 1) + 1)
        from lockstep.run r
        where r.partition_id = _partition_id and r.segment_id is null and r.last_seq > _after and r.first_seq <= _upto
    ), 0)::bigint
$$;

-- The exact lag of a cursor: stored messages after _acked.
create or replace function lockstep.lag(_partition_id bigint, _acked bigint) returns bigint language sql stable parallel safe as $$
    select coalesce(lockstep.stored_between(_partition_id, _acked, lockstep.last_stored(_partition_id)), 0)
$$;

-- When a cursor without a lease is due (rules.due_after_release); null if no message follows.
create or replace function lockstep.due_at(_partition_id bigint, _acked bigint, _delay_seconds int, _window_seconds int, _not_before timestamptz)
returns timestamptz language plpgsql stable as $$
declare
    _next_at timestamptz;
    _newest_at timestamptz;
begin
    if coalesce(lockstep.last_stored(_partition_id), 0) <= _acked then
        return null;
    end if;
    if _delay_seconds = 0 and _window_seconds = 0 then
        return _not_before;
    end if;
    select s.created_at into _next_at
    from lockstep.next_run(_partition_id, _acked) r join lockstep.segment s on s.id = r.segment_id;
    select s.created_at into _newest_at
    from lockstep.run r join lockstep.segment s on s.id = r.segment_id
    where r.partition_id = _partition_id order by r.first_seq desc limit 1;
    -- Without a delay or a window, times do not matter: they may be in the future after the clock was set back.
    return greatest(
        _not_before,
        case when _delay_seconds > 0 then _next_at + make_interval(secs => _delay_seconds) end,
        case when _window_seconds > 0 then _newest_at + make_interval(secs => _window_seconds) end);
end $$;

-- The id of a message: its segment's UUID with the ordinal in the low 16 bits.
create or replace function lockstep.message_id(_segment uuid, _ordinal int) returns uuid language sql immutable parallel safe as $$
    select (left(_segment::text, 32) || lpad(to_hex(_ordinal), 4, '0'))::uuid
$$;

-- A UUIDv7 for a segment: milliseconds, their fraction in 12 bits, 46 random bits, and room for the ordinal. Uses the
-- real clock, read after the partition locks, so that ids rise with seqs.
create or replace function lockstep.segment_uuid() returns uuid language plpgsql volatile as $$
declare
    _microseconds bigint;
begin
    if current_setting('server_version_num')::int >= 180000 then
        return (left(uuidv7()::text, 32) || '0000')::uuid;
    end if;
    _microseconds := extract(epoch from clock_timestamp()) * 1000000;
    return (
        lpad(to_hex(_microseconds / 1000), 12, '0') || '7' || lpad(to_hex(_microseconds % 1000 * 4096 / 1000), 3, '0')
        || substr(replace(gen_random_uuid()::text, '-', ''), 17, 12) || '0000'
    )::uuid;
end $$;

-- The seq of a message in a partition, by its producer's transaction id or by its own id.
create or replace function lockstep.resolve_seq(_partition_id bigint, _transaction_id text) returns bigint language plpgsql stable as $$
declare
    _seq bigint;
    _uuid uuid;
    _ordinal int;
begin
    if _transaction_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' then
        _uuid := _transaction_id::uuid;
        select d.seq into _seq from lockstep.dedup_uuid d where d.partition_id = _partition_id and d.transaction_id = _uuid;
        if found then
            return _seq;
        end if;
        _ordinal := ('x' || right(_transaction_id, 4))::bit(16)::int;
        select r.first_seq + _ordinal - r.ordinal into _seq
        from lockstep.segment s
        cross join lateral unnest(s.partition_ids, s.first_seqs, s.counts) m (partition_id, first_seq, n)
        join lockstep.run r on r.partition_id = m.partition_id and r.segment_id = s.id
            and r.first_seq between m.first_seq and m.first_seq + m.n - 1
        where s.uuid = lockstep.message_id(_uuid, 0) and m.partition_id = _partition_id
          and _ordinal between r.ordinal and r.ordinal + (r.last_seq - r.first_seq);
        return _seq;
    end if;
    select d.seq into _seq from lockstep.dedup_text d where d.partition_id = _partition_id and d.transaction_id = _transaction_id;
    return _seq;
end $$;
