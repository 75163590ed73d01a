-- Expiry: the pop that meets a message too old to be delivered skips it, and so does prune. Messages under a live lease
-- are never considered. Only queues with expire_seconds, or with messages that have a time of their own, check for
-- expiry.
-- Locks: the caller holds the cursor.
-- Indexes: run_pkey, segment_pkey, delivery_pkey.

-- When a message expires (rules.is_expired): at the time set by its producer, otherwise according to its queue; null is
-- never.
create or replace function lockstep.expiry(_created_at timestamptz, _own timestamptz, _expire_seconds int) returns timestamptz language sql stable as $$
    select coalesce(_own, case when _expire_seconds > 0 then _created_at + make_interval(secs => _expire_seconds) end)
$$;

-- Whether a message is too old to be delivered. Checked before a message is leased; see rules.is_expired.
create or replace function lockstep.is_expired(_created_at timestamptz, _own timestamptz, _queue lockstep.queue, _now timestamptz) returns boolean language sql stable as $$
    select coalesce(lockstep.expiry(_created_at, _own, _queue.expire_seconds) <= _now, false)
$$;

-- Whether a queue has anything that may expire.
create or replace function lockstep.may_expire(_queue lockstep.queue) returns boolean language sql immutable as $$
    select _queue.expire_seconds > 0 or _queue.expiring
$$;

-- How many messages this transaction may still skip because they expired or died under an expired lease: such calls
-- work in slices. The connection's setting (`expire_messages_max`) applies to each of its transactions separately.
create or replace function lockstep.passes_left() returns int language sql volatile as $$
    select coalesce(nullif(current_setting('lockstep.passes_left', true), ''), '2000')::int
$$;

-- Subtracts from the number of messages that this transaction may still skip.
create or replace function lockstep.note_passes(_passed bigint) returns void language plpgsql as $$
begin
    perform set_config('lockstep.passes_left', greatest(lockstep.passes_left() - _passed, 0)::text, true);
end $$;

-- The expired stored messages in (_after, _upto], as ranges that each lie within one run. The times of a segment are an
-- array, read once per run rather than once per message.
create or replace function lockstep.expired_between(_partition_id bigint, _after bigint, _upto bigint, _queue lockstep.queue, _now timestamptz)
returns table (first_seq bigint, last_seq bigint) language sql stable as $$
    select greatest(r.first_seq, _after + 1), least(r.last_seq, _upto)
    from lockstep.runs_between(_partition_id, _after, _upto) r
    join lockstep.segment s on s.id = r.segment_id
    where s.expires_at is null and lockstep.is_expired(s.created_at, null, _queue, _now)
    union all
    select greatest(r.first_seq, _after + 1) + t.o - 1, greatest(r.first_seq, _after + 1) + t.o - 1
    from lockstep.runs_between(_partition_id, _after, _upto) r
    join lockstep.segment s on s.id = r.segment_id and s.expires_at is not null
    cross join lateral unnest(s.expires_at[
        r.ordinal + greatest(_after + 1 - r.first_seq, 0) + 1 : r.ordinal + least(r.last_seq, _upto) - r.first_seq + 1
    ]) with ordinality t (at, o)
    where lockstep.is_expired(s.created_at, t.at, _queue, _now)
$$;

-- The consecutive expired messages directly after _acked: the seq of the last one, null if the next message is not
-- expired. Stops there, or after _limit messages or, if nothing is recorded per message, _limit runs. _looked is their
-- number.
create or replace function lockstep.expired_upto(
    _partition_id bigint, _acked bigint, _queue lockstep.queue, _now timestamptz, _limit bigint, out _upto bigint, out _looked bigint
) language plpgsql stable as $$
declare
    _run record;
    _n bigint;
    _alive bigint;
begin
    _looked := 0;
    for _run in
        select greatest(r.first_seq, _acked + 1) as first_seq, r.last_seq, r.ordinal - r.first_seq + 1 as shift, s.created_at, s.expires_at
        from lockstep.run r join lockstep.segment s on s.id = r.segment_id
        where r.partition_id = _partition_id and r.last_seq > _acked
          and r.first_seq >= coalesce(
              (select f.first_seq from lockstep.run f where f.partition_id = _partition_id and f.first_seq <= _acked + 1 order by f.first_seq desc limit 1), 0)
        order by r.first_seq
    loop
        exit when _looked >= _limit;
        _n := _run.last_seq - _run.first_seq + 1;
        if _queue.on_expired = 'dead' or _run.expires_at is not null then
            _n := least(_n, _limit - _looked);
        end if;
        if _run.expires_at is null then
            exit when not lockstep.is_expired(_run.created_at, null, _queue, _now);
            _alive := null;
        else
            _alive := (
                select min(t.o) from unnest(_run.expires_at[_run.first_seq + _run.shift : _run.first_seq + _n - 1 + _run.shift]) with ordinality t (at, o)
                where not lockstep.is_expired(_run.created_at, t.at, _queue, _now));
            exit when _alive = 1;
        end if;
        _upto := _run.first_seq + coalesce(_alive - 1, _n) - 1;
        _looked := _looked + case when _queue.on_expired = 'dead' or _run.expires_at is not null then coalesce(_alive - 1, _n) else 1 end;
        exit when _alive is not null;
    end loop;
end $$;

-- Whether the next message after _acked is expired.
create or replace function lockstep.is_head_expired(_partition_id bigint, _acked bigint, _queue lockstep.queue, _now timestamptz) returns boolean language sql stable as $$
    select e._upto is not null from lockstep.expired_upto(_partition_id, _acked, _queue, _now, 1) e
$$;

-- Where a lease from _acked to _upto must end: before the first expired message. (Its head is not expired.)
create or replace function lockstep.before_expired(_partition_id bigint, _acked bigint, _upto bigint, _queue lockstep.queue, _now timestamptz) returns bigint language sql stable as $$
    select case when e.first_seq is null then _upto
                else (select max(least(r.last_seq, e.first_seq - 1)) from lockstep.runs_between(_partition_id, _acked, e.first_seq - 1) r) end
    from (select min(e.first_seq) as first_seq from lockstep.expired_between(_partition_id, _acked, _upto, _queue, _now) e) e
$$;

-- Moves a locked cursor without a live lease past the expired messages that come next (rules.overdue); returns the new
-- position. Records dead letters if the queue says so; that of the head has the head's attempts. Skips no more messages
-- than this transaction may, so the next message may still be expired.
create or replace function lockstep.pass_expired(
    _partition_id bigint, _group_id int, _acked bigint, _attempts int, _queue lockstep.queue, _now timestamptz
) returns bigint language plpgsql as $$
declare
    _upto bigint;
    _looked bigint;
    _head bigint;
begin
    select e._upto, e._looked into _upto, _looked from lockstep.expired_upto(_partition_id, _acked, _queue, _now, lockstep.passes_left()) e;
    if _upto is null then
        return _acked;
    end if;
    perform lockstep.note_passes(_looked);
    if _queue.on_expired = 'dead' then
        _head := lockstep.next_seq(_partition_id, _acked);
        insert into lockstep.dead_letter (queue_id, partition_id, seq, group_name, attempts, error, failed_at)
        select _queue.id, _partition_id, t.seq, g.name, case when t.seq = _head then _attempts else 0 end, 'expired', _now
        from lockstep.consumer_group g
        cross join lockstep.runs_between(_partition_id, _acked, _upto) r
        cross join lateral generate_series(greatest(r.first_seq, _acked + 1), least(r.last_seq, _upto)) t (seq)
        where g.id = _group_id
        order by t.seq;
    end if;
    return _upto;
end $$;

-- Removes the expired messages from a locked range of a shared group without a live lease, as many as this transaction
-- may skip; returns whether there were any. Records dead letters if the queue says so.
create or replace function lockstep.shared_pass_expired(_range lockstep.delivery, _queue lockstep.queue, _now timestamptz) returns boolean language plpgsql as $$
declare
    _gone bigint[];
begin
    if not lockstep.may_expire(_queue) then
        return false;
    end if;
    _gone := array(
        select t.seq from lockstep.expired_between(_range.partition_id, _range.from_seq - 1, _range.to_seq, _queue, _now) e
        cross join lateral generate_series(e.first_seq, e.last_seq) t (seq) order by t.seq);
    if _gone = '{}' then
        return false;
    end if;
    _gone := _gone[:lockstep.passes_left()];
    if _gone = '{}' then
        return true;
    end if;
    perform lockstep.note_passes(cardinality(_gone));
    if _queue.on_expired = 'dead' then
        perform lockstep.shared_deaths(_queue.id, _range.group_id, _range.partition_id, t.seq, t.seq, _range.attempts, 'expired', _now)
        from unnest(_gone) t (seq);
    end if;
    perform lockstep.shared_end_seqs(_range, _gone);
    return true;
end $$;

-- Of a cursor's first thousand ranges in flight that are neither leased nor stopped, those with expired messages. Later
-- ranges are younger, unless their messages have times of their own; those are found once earlier ranges are gone, or
-- by the pop that meets them.
create or replace function lockstep.shared_expired(_cursor lockstep.cursor, _queue lockstep.queue, _now timestamptz)
returns setof lockstep.delivery language sql stable as $$
    select d.* from (
        select d.* from lockstep.delivery d
        where d.partition_id = _cursor.partition_id and d.group_id = _cursor.group_id
          and d.due_at < 'infinity' and not (d.lease_id is not null and d.due_at > _now)
        order by d.from_seq limit 1000
    ) d
    where exists (select 1 from lockstep.expired_between(d.partition_id, d.from_seq - 1, d.to_seq, _queue, _now))
    order by d.from_seq
$$;

-- Removes expired messages from a range whose cursor is locked; returns their number. A due range is settled as by a
-- pop; a range that waits for its retry just loses the messages.
create or replace function lockstep.shared_expire(_range lockstep.delivery, _queue lockstep.queue, _now timestamptz) returns bigint language plpgsql as $$
declare
    _before bigint;
    _seen bigint := _range.from_seq - 1;
    _one lockstep.delivery;
begin
    -- Completing a lease holds no cursor.
    perform 1 from lockstep.delivery d
    where d.partition_id = _range.partition_id and d.group_id = _range.group_id and d.from_seq = _range.from_seq for update;
    if not found then
        return 0;
    end if;
    _before := lockstep.still_stored(_range.partition_id, _range.from_seq - 1, _range.to_seq);
    loop
        select d.* into _one from lockstep.delivery d
        where d.partition_id = _range.partition_id and d.group_id = _range.group_id and d.from_seq > _seen and d.from_seq <= _range.to_seq
          and d.due_at < 'infinity'
        order by d.from_seq limit 1;
        exit when not found;
        _seen := case
            when _one.due_at <= _now and not lockstep.shared_put_right(_one, _queue, _now) then _seen
            when _one.due_at > _now and lockstep.shared_pass_expired(_one, _queue, _now) then _seen
            else _one.to_seq end;
        exit when lockstep.passes_left() = 0;
    end loop;
    return _before - coalesce((
        select sum(lockstep.still_stored(d.partition_id, d.from_seq - 1, d.to_seq)) from lockstep.delivery d
        where d.partition_id = _range.partition_id and d.group_id = _range.group_id and d.from_seq between _range.from_seq and _range.to_seq), 0);
end $$;

-- Prune, kind `expiry`: skips expired messages ahead of the cursors and in flight, in the next partitions of the first
-- queue at or after the place (a queue's name and a partition) that has anything that may expire. Returns the number of
-- skipped messages, summed over the groups; _queue is null at the end of the last queue. Leased and stopped messages
-- are left alone, and so are partitions locked for long, or whose dead letters would go to such partitions. The call
-- ends when it has examined as many ranges as it may examine partitions, or may skip no more messages; the next call
-- continues with the same partition.
-- Locks: the queue row in share mode, partition rows (by id) including those that dead letters go to, cursor rows,
-- delivery rows.
create or replace function lockstep.prune_expired(
    _after_queue text, _after_partition bigint, _partitions int, _at timestamptz, out _queue text, out _next bigint, out _passed bigint
) language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _one lockstep.queue;
    _ids bigint[];
    _targets bigint[];
    _locked bigint[];
    _cursor lockstep.cursor;
    _upto bigint;
    _ranges int := _partitions;
    _range lockstep.delivery;
begin
    _passed := 0;
    select q.* into _one from lockstep.queue q where q.name >= _after_queue and lockstep.may_expire(q) order by q.name limit 1 for share;
    if not found then
        return;
    end if;
    _queue := _one.name;
    _ids := lockstep.next_partitions(_one.id, case when _one.name = _after_queue then _after_partition else 0 end, _partitions);
    _next := case when cardinality(_ids) = _partitions then _ids[_partitions] end;
    _ids := array(
        select distinct c.partition_id from unnest(_ids) t (id)
        cross join lateral lockstep.cursors_at(_one.id, t.id) c
        where (c.due_at < 'infinity' and not (c.lease_id is not null and c.due_at > _now)
               and lockstep.is_head_expired(c.partition_id, c.acked, _one, _now))
           or exists (select 1 from lockstep.shared_expired(c, _one, _now))
    );
    if _ids = '{}' then
        return;
    end if;
    _targets := lockstep.dead_targets(_ids);
    _locked := lockstep.lock_to_prune(_ids || _targets);
    _ids := array(select i from unnest(_ids) i where i = any (_locked) and lockstep.dead_targets(array[i]) <@ _locked);
    perform lockstep.place(_one.id, null, _ids);
    perform 1 from lockstep.cursor c where c.partition_id = any (_ids) order by c.partition_id, c.group_id for no key update;
    -- In the order of the names, which is that of their dead letters.
    for _cursor in
        select c.* from lockstep.cursor c join lockstep.partition p on p.id = c.partition_id
        join lockstep.consumer_group g on g.id = c.group_id
        where c.partition_id = any (_ids) and p.queue_id = _one.id
        order by c.partition_id, g.name
    loop
        for _range in select r.* from lockstep.shared_expired(_cursor, _one, _now) r limit _ranges loop
            _passed := _passed + lockstep.shared_expire(_range, _one, _now);
            _ranges := _ranges - 1;
        end loop;
        if _ranges = 0 or lockstep.passes_left() = 0 then
            _next := _cursor.partition_id - 1;
            exit;
        end if;
        continue when _cursor.due_at is null or _cursor.due_at = 'infinity' or (_cursor.lease_id is not null and _cursor.due_at > _now);
        continue when not lockstep.is_head_expired(_cursor.partition_id, _cursor.acked, _one, _now);
        if _cursor.due_at <= _now then
            _upto := (lockstep.put_right(_cursor, _one, _now)).acked;
        else
            _upto := lockstep.pass_expired(_cursor.partition_id, _cursor.group_id, _cursor.acked, _cursor.attempts, _one, _now);
            update lockstep.cursor c
            set acked = _upto, attempts = 0, consumed_at = _now,
                due_at = lockstep.due_at(c.partition_id, _upto, _one.delay_seconds, _one.window_seconds, _now)
            where c.partition_id = _cursor.partition_id and c.group_id = _cursor.group_id;
            perform lockstep.count_moves(array[_cursor.group_id], array[_cursor.partition_id], array[_cursor.acked], array[_upto]);
        end if;
        _passed := _passed + lockstep.stored_between(_cursor.partition_id, _cursor.acked, _upto);
        if lockstep.passes_left() = 0 then
            _next := _cursor.partition_id - 1;
            exit;
        end if;
    end loop;
    if _passed > 0 then
        perform lockstep.note_removal(_one.name, 'expiry', _passed, 0, _now);
    end if;
end $$;
