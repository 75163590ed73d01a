-- Leases of Spark streams: what a batch leases from consumer groups is recorded before the batch is planned, so that a
-- restart finds it. The leases are those of ordinary consumers.
--
-- Guarantees: an ordinal is leased once; a restart takes the messages leased under the ordinal, except those done or
-- taken by others since; messages under another lease are never acked.
-- Locks: the stream's rows; then as pop, ack and renew do.
-- Indexes: spark_lease_pkey, cursor_pkey, delivery_pkey, run_pkey.

-- Leases at most _batch messages of a group and records them as the next ordinal, which is null if there are none.
create or replace function lockstep.spark_lease(
    _stream text, _after bigint, _group_id int, _partitions int, _batch int, _lease_ms bigint, _lease_id uuid, _at timestamptz,
    out _ordinal bigint, out _messages bigint
) language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _group lockstep.consumer_group;
    _next bigint;
begin
    select g.* into _group from lockstep.consumer_group g where g.id = _group_id;
    if not found then
        raise exception 'the group is gone' using errcode = 'LS001';
    end if;
    if _group.placed_upto is not null then
        perform lockstep.place_slice(_group_id, null, 1000, _at);
    end if;
    _next := greatest(_after, coalesce((select max(l.ordinal) from lockstep.spark_lease l where l.stream = _stream), 0)) + 1;
    insert into lockstep.spark_lease (
        stream, ordinal, queue_id, group_id, lease_id, leased_at, partition_ids, first_seqs, last_seqs, segment_ids, ordinals
    )
    select _stream, _next, _group.queue_id, _group_id, _lease_id, _now,
           array_agg(p.partition_id), array_agg(p.first_seq), array_agg(p.last_seq), array_agg(p.segment_id), array_agg(p.ordinal)
    from lockstep.spark_pop(_group, _partitions, _batch, _lease_ms, _lease_id, _now) p
    having count(*) > 0
    returning ordinal, (select sum(t.last - t.first + 1) from unnest(first_seqs, last_seqs) t (first, last)) into _ordinal, _messages;
    delete from lockstep.spark_lease l where l.stream = _stream and l.acked_at is not null and l.ordinal < _ordinal;
exception when unique_violation then
    raise exception 'the stream % is read by another query, too', quote_literal(_stream) using errcode = 'LS007';
end $$;

create or replace function lockstep.spark_pop(
    _group lockstep.consumer_group, _partitions int, _batch int, _lease_ms bigint, _lease_id uuid, _now timestamptz
) returns table (partition_id bigint, first_seq bigint, last_seq bigint, segment_id bigint, ordinal int) language plpgsql as $$
#variable_conflict use_column
begin
    if _group.mode = 'shared' then
        return query select p.partition_id, p.first_seq, p.last_seq, p.segment_id, p.ordinal from lockstep.shared_pop(
            array[0], array[_group.id], array[null::bigint], array[_partitions], array[_batch], array[_lease_ms], array[_lease_id], array[false], _now) p
        where p.partition_id is not null;
    else
        return query select p.partition_id, p.first_seq, p.last_seq, p.segment_id, p.ordinal from lockstep.pop(
            array[0], array[_group.id], array[null::bigint], array[_partitions], array[_batch], array[_lease_ms], array[_lease_id], array[false], _now) p
        where p.partition_id is not null;
    end if;
end $$;

-- Takes the messages of an ordinal under a new lease, so that the previous holder loses them: those still leased, and
-- those that nobody has done or leased. The others are left out, and belong to their current holders.
create or replace function lockstep.spark_keep(_stream text, _ordinal bigint, _lease_ms bigint, _lease_id uuid, _at timestamptz) returns void language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _lease lockstep.spark_lease;
    _queue lockstep.queue;
    _until timestamptz;
    _mode text;
    _kept lockstep.run[];
begin
    select l.* into _lease from lockstep.spark_lease l
    where l.stream = _stream and l.ordinal = _ordinal and l.acked_at is null for no key update;
    if not found then
        return;
    end if;
    select q.* into _queue from lockstep.queue q where q.id = _lease.queue_id;
    select g.mode into _mode from lockstep.consumer_group g where g.id = _lease.group_id;
    _until := _now + coalesce(_lease_ms * interval '1 ms', make_interval(secs => _queue.lease_seconds));
    -- Of a deleted group nothing is kept.
    _kept := case _mode when 'shared' then lockstep.spark_keep_shared(_lease, _queue, _lease_id, _until, _now)
                        when 'ordered' then lockstep.spark_keep_ordered(_lease, _queue, _lease_id, _until, _now) end;
    update lockstep.spark_lease l
    set lease_id = _lease_id, leased_at = _now, acked_at = case when _kept is null then _now end,
        partition_ids = array(select r.partition_id from unnest(_kept) r), first_seqs = array(select r.first_seq from unnest(_kept) r),
        last_seqs = array(select r.last_seq from unnest(_kept) r), segment_ids = array(select r.segment_id from unnest(_kept) r),
        ordinals = array(select r.ordinal from unnest(_kept) r)
    where l.stream = _stream and l.ordinal = _ordinal;
end $$;

-- For an ordered group: in each partition the messages after the cursor, up to where they were leased, unless another
-- consumer has a live lease. An expired lease charges an attempt; if that was the last one, the next pop handles it.
create or replace function lockstep.spark_keep_ordered(
    _lease lockstep.spark_lease, _queue lockstep.queue, _lease_id uuid, _until timestamptz, _now timestamptz
) returns lockstep.run[] language plpgsql as $$
declare
    _partition_ids bigint[];
    _acked bigint[];
    _to bigint[];
begin
    perform 1 from lockstep.cursor c
    where c.partition_id = any (_lease.partition_ids) and c.group_id = _lease.group_id order by c.partition_id for no key update;
    with lane as (
        select t.partition_id, min(t.first_seq) as first_seq, max(t.last_seq) as last_seq
        from unnest(_lease.partition_ids, _lease.first_seqs, _lease.last_seqs) t (partition_id, first_seq, last_seq)
        group by t.partition_id
    ), kept as (
        update lockstep.cursor c
        set lease_id = _lease_id, lease_to = l.last_seq, leased_at = _now, due_at = _until,
            attempts = case when c.lease_id is not null and c.due_at <= _now then lockstep.charged(c.attempts) else c.attempts end
        from lane l
        where c.partition_id = l.partition_id and c.group_id = _lease.group_id and c.acked between l.first_seq - 1 and l.last_seq - 1
          and case when c.lease_id is null then c.due_at < 'infinity'
                   when c.due_at <= _now then not lockstep.exhausted(lockstep.charged(c.attempts), _queue)
                   else c.lease_id = _lease.lease_id end
          and lockstep.stored_between(c.partition_id, c.acked, l.last_seq) > 0
        returning c.partition_id, c.acked, c.lease_to
    )
    select array_agg(k.partition_id), array_agg(k.acked), array_agg(k.lease_to) into _partition_ids, _acked, _to from kept k;
    return lockstep.spark_runs(_partition_ids, _acked, _to);
end $$;

-- For a shared group: the ranges in flight within what was leased, unless another consumer has a live lease.
create or replace function lockstep.spark_keep_shared(
    _lease lockstep.spark_lease, _queue lockstep.queue, _lease_id uuid, _until timestamptz, _now timestamptz
) returns lockstep.run[] language plpgsql as $$
declare
    _partition_ids bigint[];
    _after bigint[];
    _to bigint[];
begin
    perform 1 from lockstep.cursor c
    where c.partition_id = any (_lease.partition_ids) and c.group_id = _lease.group_id order by c.partition_id for no key update;
    perform 1 from lockstep.delivery d
    where d.partition_id = any (_lease.partition_ids) and d.group_id = _lease.group_id
    order by d.partition_id, d.group_id, d.from_seq for no key update;
    with leased as (
        -- Adjacent runs form one range.
        select t.partition_id, min(t.first_seq) as first_seq, max(t.last_seq) as last_seq
        from (
            select t.*, t.first_seq - sum(t.last_seq - t.first_seq + 1) over (partition by t.partition_id order by t.first_seq)
                   + (t.last_seq - t.first_seq + 1) as island
            from unnest(_lease.partition_ids, _lease.first_seqs, _lease.last_seqs) t (partition_id, first_seq, last_seq)
        ) t
        group by t.partition_id, t.island
    ), kept as (
        update lockstep.delivery d
        set lease_id = _lease_id, leased_at = _now, due_at = _until,
            attempts = case when d.lease_id is not null and d.due_at <= _now then lockstep.charged(d.attempts) else d.attempts end
        from leased l
        where d.partition_id = l.partition_id and d.group_id = _lease.group_id and d.from_seq >= l.first_seq and d.to_seq <= l.last_seq
          and case when d.lease_id is null then d.due_at < 'infinity'
                   when d.due_at <= _now then not lockstep.exhausted(lockstep.charged(d.attempts), _queue)
                   else d.lease_id = _lease.lease_id end
          and lockstep.still_stored(d.partition_id, d.from_seq - 1, d.to_seq) > 0
        returning d.partition_id, d.from_seq - 1 as after, d.to_seq
    )
    select array_agg(k.partition_id), array_agg(k.after), array_agg(k.to_seq) into _partition_ids, _after, _to from kept k;
    return lockstep.spark_runs(_partition_ids, _after, _to);
end $$;

-- The stored runs of ranges, each cut to its range; null if there are none.
create or replace function lockstep.spark_runs(_partition_ids bigint[], _after bigint[], _upto bigint[]) returns lockstep.run[] language sql stable as $$
    select array_agg((t.partition_id, greatest(r.first_seq, t.after + 1), least(r.last_seq, t.upto), r.segment_id,
                      (r.ordinal + greatest(t.after + 1 - r.first_seq, 0))::int, null)::lockstep.run order by t.partition_id, r.first_seq)
    from unnest(_partition_ids, _after, _upto) t (partition_id, after, upto)
    cross join lateral lockstep.runs_between(t.partition_id, t.after, t.upto) r
$$;

-- Acks what a stream has leased and planned up to an ordinal. Returns the number of messages, and the partitions in
-- which some no longer belonged to the stream: the caller decides whether that matters.
create or replace function lockstep.spark_ack(_stream text, _upto bigint, _at timestamptz, out _messages bigint, out _lost text[]) language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _lease_ids uuid[];
begin
    select array_agg(l.lease_id) into _lease_ids from (
        select l.lease_id from lockstep.spark_lease l
        where l.stream = _stream and l.ordinal <= _upto and l.acked_at is null and l.planned_at is not null
        order by l.ordinal for no key update
    ) l;
    if _lease_ids is null then
        _messages := 0;
        return;
    end if;
    with acked as materialized (
        select a.lease_id, a.partition_id, sum(a.messages) as messages from lockstep.ack_leases(_lease_ids, _now) a
        where not a.expired group by a.lease_id, a.partition_id
    ), leased as (
        select l.lease_id, t.partition_id, sum(t.last_seq - t.first_seq + 1) as messages
        from lockstep.spark_lease l
        cross join lateral unnest(l.partition_ids, l.first_seqs, l.last_seqs) t (partition_id, first_seq, last_seq)
        where l.stream = _stream and l.lease_id = any (_lease_ids)
        group by l.lease_id, t.partition_id
    )
    select coalesce(sum(least(a.messages, l.messages)), 0),
           array_agg(format('%s/%s', q.name, p.name) order by q.name, p.name) filter (where coalesce(a.messages, 0) < l.messages)
    into _messages, _lost
    from leased l
    left join acked a on a.lease_id = l.lease_id and a.partition_id = l.partition_id
    left join lockstep.partition p on p.id = l.partition_id
    left join lockstep.queue q on q.id = p.queue_id;
    update lockstep.spark_lease l
    set acked_at = _now, partition_ids = '{}', first_seqs = '{}', last_seqs = '{}', segment_ids = '{}', ordinals = '{}'
    where l.stream = _stream and l.lease_id = any (_lease_ids);
end $$;
