-- Positions of Spark streams: what they hold back from retention, and what was removed before they had read it.
--
-- Guarantees: a mark exists only if everything exists that was visible when it was made.
-- Locks: a stream's own rows. Removing messages only reads them, after the partition locks; for a position that moves
-- at that moment, at worst a removal is recorded that it has read.
-- Indexes: spark_mark_pkey, spark_mark_age, spark_position_queue, spark_removal_txid, segment_queue_txid, run_pkey.

-- Whether a position contains a segment.
create or replace function lockstep.is_read(_base pg_snapshot, _upto pg_snapshot, _segment bigint, _txid xid8, _segment_id bigint)
returns boolean language sql immutable as $$
    select pg_visible_in_snapshot(_txid, _base) or (_segment_id <= _segment and pg_visible_in_snapshot(_txid, _upto))
$$;

-- Whether a checkpoint may still request a segment. A stream that has been silent for too long holds nothing.
create or replace function lockstep.is_held(_queue_id int, _txid xid8, _segment_id bigint) returns boolean language sql stable as $$
    select exists (
        select 1 from lockstep.spark_position p
        where p.queue_id = _queue_id and p.held_until > clock_timestamp()
          and not lockstep.is_read(p.committed_base, p.committed_upto, p.committed_segment, _txid, _segment_id)
    )
$$;

-- Records which messages some stream has not read, for ranges about to be removed from locked partitions.
create or replace function lockstep.note_unread(_queue_id int, _partition_ids bigint[], _from bigint[], _to bigint[]) returns void language plpgsql as $$
begin
    if not exists (select 1 from lockstep.spark_position p where p.queue_id = _queue_id) then
        return;
    end if;
    insert into lockstep.spark_removal as n (queue_id, segment_id, partition_id, txid, messages, removed_at)
    select _queue_id, s.id, t.partition_id, s.txid, sum(least(r.last_seq, t.last_seq) - greatest(r.first_seq, t.first_seq) + 1), clock_timestamp()
    from unnest(_partition_ids, _from, _to) t (partition_id, first_seq, last_seq)
    cross join lateral lockstep.runs_between(t.partition_id, t.first_seq - 1, t.last_seq) r
    join lockstep.segment s on s.id = r.segment_id
    where exists (
        select 1 from lockstep.spark_position p
        where p.queue_id = _queue_id
          and not lockstep.is_read(p.committed_base, p.committed_upto, p.committed_segment, s.txid, s.id)
    )
    group by s.id, t.partition_id
    on conflict (queue_id, segment_id, partition_id) do update
    set messages = n.messages + excluded.messages, removed_at = excluded.removed_at;
end $$;

-- Publishes the position of a stream in its queues, which are all that it reads. A null committed position keeps the
-- stored one, if there is one. Removals that all streams of a queue have passed are no longer recorded.
create or replace function lockstep.publish_position(
    _stream_id text, _name text, _queue_ids int[], _hold_seconds double precision,
    _read_base pg_snapshot, _read_upto pg_snapshot, _read_segment bigint,
    _committed_base pg_snapshot, _committed_upto pg_snapshot, _committed_segment bigint
) returns void language plpgsql as $$
declare
    _now timestamptz := clock_timestamp();
begin
    insert into lockstep.spark_position as p (
        stream_id, queue_id, name, created_at, updated_at, held_until, read_base, read_upto, read_segment,
        committed_base, committed_upto, committed_segment
    )
    select _stream_id, q.id, _name, _now, _now, _now + make_interval(secs => _hold_seconds), _read_base, _read_upto, _read_segment,
           coalesce(_committed_base, _read_base), coalesce(_committed_upto, _read_upto), coalesce(_committed_segment, _read_segment)
    from lockstep.queue q where q.id = any (_queue_ids) order by q.id
    on conflict (stream_id, queue_id) do update
    set name = excluded.name, updated_at = excluded.updated_at, held_until = excluded.held_until,
        read_base = excluded.read_base, read_upto = excluded.read_upto, read_segment = excluded.read_segment,
        committed_base = coalesce(_committed_base, p.committed_base), committed_upto = coalesce(_committed_upto, p.committed_upto),
        committed_segment = coalesce(_committed_segment, p.committed_segment), accepted_at = null;
    -- A queue that the stream no longer reads is no longer held.
    delete from lockstep.spark_position p where p.stream_id = _stream_id and p.queue_id <> all (_queue_ids);
    if _committed_base is not null then
        perform lockstep.forget_unread(_queue_ids);
    end if;
end $$;

-- Marks the end of a stream's next batch; returns the mark's ordinal. The last _kept marks are kept.
-- Raises SQLSTATE LS007 if two queries mark one stream at once.
create or replace function lockstep.mark_position(_stream_id text, _mark uuid, _kept int) returns bigint language plpgsql as $$
declare
    _ordinal bigint;
begin
    insert into lockstep.spark_mark (stream_id, ordinal, mark, marked_at)
    select _stream_id, coalesce(max(m.ordinal), 0) + 1, _mark, clock_timestamp()
    from lockstep.spark_mark m where m.stream_id = _stream_id
    returning ordinal into _ordinal;
    delete from lockstep.spark_mark m where m.stream_id = _stream_id and m.ordinal <= _ordinal - _kept;
    return _ordinal;
exception when unique_violation then
    raise exception 'the stream % is read by another query, too', quote_literal(_stream_id) using errcode = 'LS007';
end $$;

-- What the database knows of a mark: `known`, `forgotten` because only later marks are kept, or `lost`.
create or replace function lockstep.mark_state(_stream_id text, _ordinal bigint, _mark uuid) returns text language sql stable as $$
    select case
        when exists (select 1 from lockstep.spark_mark m where m.stream_id = _stream_id and m.ordinal = _ordinal and m.mark = _mark) then 'known'
        when _ordinal < (select min(m.ordinal) from lockstep.spark_mark m where m.stream_id = _stream_id) then 'forgotten'
        else 'lost'
    end
$$;

-- Allows a stream whose checkpoint is ahead of the database to continue from the last position that it published here.
-- Returns the number of queues; the next batch of the stream revokes the permission.
create or replace function lockstep.accept_position(_stream_id text) returns int language plpgsql as $$
declare
    _queues int;
begin
    update lockstep.spark_position p set accepted_at = clock_timestamp() where p.stream_id = _stream_id;
    get diagnostics _queues = row_count;
    return _queues;
end $$;

-- Forgets removals recorded for streams that have passed them, or are gone. Reads only what the slowest stream may have
-- passed.
create or replace function lockstep.forget_unread(_queue_ids int[]) returns void language sql as $$
    delete from lockstep.spark_removal n
    using (
        select t.queue_id, coalesce((
            select pg_snapshot_xmax(p.committed_upto) from lockstep.spark_position p where p.queue_id = t.queue_id order by 1 limit 1
        ), '18446744073709551615'::xid8) as upto
        from unnest(_queue_ids) t (queue_id)
    ) l
    where n.queue_id = l.queue_id and n.txid < l.upto and not exists (
        select 1 from lockstep.spark_position p
        where p.queue_id = n.queue_id
          and not lockstep.is_read(p.committed_base, p.committed_upto, p.committed_segment, n.txid, n.segment_id)
    )
$$;

-- Removes a stream's positions; returns the number of queues.
create or replace function lockstep.forget_stream(_stream_id text) returns int language plpgsql as $$
declare
    _queue_ids int[];
begin
    with gone as (delete from lockstep.spark_position p where p.stream_id = _stream_id returning p.queue_id)
    select array_agg(g.queue_id) into _queue_ids from gone g;
    perform lockstep.forget_unread(_queue_ids);
    return coalesce(cardinality(_queue_ids), 0);
end $$;

-- Removes the positions of streams that have been silent for too long.
create or replace function lockstep.prune_positions() returns void language plpgsql as $$
declare
    _queue_ids int[];
begin
    -- A checkpoint may return long after its position is forgotten; it then learns what it may have missed.
    delete from lockstep.spark_mark m where m.marked_at < (select clock_timestamp() - interval '1 year');
    with gone as (delete from lockstep.spark_position p where p.held_until <= clock_timestamp() returning p.queue_id)
    select array_agg(distinct g.queue_id) into _queue_ids from gone g;
    perform lockstep.forget_unread(_queue_ids);
end $$;

-- Makes segments restored from another server readable for streams: their transactions are unknown here, and their
-- numbers will be reused. Returns the number of segments. For the administrator, while nothing is written.
create or replace function lockstep.adopt_segments() returns bigint language plpgsql as $$
declare
    _adopted bigint;
begin
    update lockstep.segment s set txid = pg_current_xact_id() where s.txid >= pg_snapshot_xmax(pg_current_snapshot());
    get diagnostics _adopted = row_count;
    return _adopted;
end $$;
