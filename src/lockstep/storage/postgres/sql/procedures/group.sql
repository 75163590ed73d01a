-- Groups: how they begin, move and are deleted.
--
-- A group exists as soon as its row is committed, whatever the number of partitions. Its cursors are created in slices:
-- by its pops, by a duty, and by pushes to a partition without one. Rules while cursors are missing:
--
-- 1. A group that lacks a cursor in a partition is at the place where it began (begin_of): the first stored message, the
--    last one created up to a time, a seq, or the end. lockstep.cursor_at shows that place as if it were a cursor.
-- 2. A transaction that adds messages to a partition locks it, finds the groups that lack a cursor there, and creates those before
--    its own messages. So the end of a partition without a cursor is still where it was when the group was committed: `new`
--    misses nothing that was pushed after it, and shows nothing that was committed before. A push that was on its way when the
--    group was committed, and did not see it, holds its partition until it commits: the cursor comes after it.
-- 3. A removal of messages does not change these places: a place is before the first stored message that follows it.
--    Completed retention asks what all groups have done: it never overlaps with the commit of a new group (completion_lock).
-- 4. The partitions that lack a cursor are those that were committed before the group and were not reached yet (placed_upto),
--    and those that were locked when it was their turn (lockstep.missing_cursor). Creating a partition holds the queue row
--    in share mode and then makes a cursor for every group it sees (resolve.sql). If such a transaction was open when the group
--    was committed, the group is not fenced: at the end it takes the queue row for a moment and goes over all partitions again.
-- 5. A slice waits for no lock, and two slices of one group never overlap: they lock the group's row.
--
-- Moving a whole group starts it anew: the row gets another id and the cursors of the old id become meaningless, so all
-- partitions move at once. A deleted group, and a moved one under its old id, is in lockstep.deleted_group until its
-- cursors are removed. Every reader of cursors joins their group: leftovers of a deleted group have none.
--
-- In a queue with a max_size a group that lacks cursors is counted as if they were at the start, or at the end if it
-- began there; creating a cursor counts the difference. A group is never counted as having less than it has.
--
-- Locks: the queue row, then the completion lock, then the group's row, then partition rows (by id), then cursor rows. A slice
-- has the group's row first, and only tries the others. Indexes: consumer_group_unplaced, partition_queue, segment_queue, cursor_pkey.

-- The position of a group in a partition where it lacks its cursor.
create or replace function lockstep.begin_of(_group lockstep.consumer_group, _partition_id bigint) returns bigint language sql stable as $$
    select case _group.begins
        when 'start' then lockstep.start_of(_partition_id)
        when 'end' then lockstep.last_seq(_partition_id)
        when 'time' then lockstep.seq_at(_partition_id, _group.begins_at, false)
        else least(greatest(_group.begins_seq - 1, lockstep.start_of(_partition_id)), lockstep.last_seq(_partition_id)) end
$$;

-- The cursor of a group in a partition, or its substitute while it is missing.
create or replace function lockstep.cursor_at(_group lockstep.consumer_group, _partition_id bigint) returns setof lockstep.cursor language sql stable as $$
    select c.* from lockstep.cursor c where c.partition_id = _partition_id and c.group_id = _group.id
    union all
    select _partition_id, _group.id, b.acked, lockstep.due_at(_partition_id, b.acked, q.delay_seconds, q.window_seconds, _group.begun_at),
           null, null, null, 0, lockstep.consumed_before(_group.replaces, _partition_id)
    from lockstep.queue q
    cross join lateral (select lockstep.begin_of(_group, _partition_id) as acked offset 0) b
    where _group.placed_upto is not null and q.id = _group.queue_id
      and not exists (select 1 from lockstep.cursor c where c.partition_id = _partition_id and c.group_id = _group.id)
$$;

-- All cursors of a partition's groups, with substitutes for missing ones, and without leftovers of deleted groups.
create or replace function lockstep.cursors_at(_queue_id int, _partition_id bigint) returns setof lockstep.cursor language sql stable as $$
    select c.* from lockstep.consumer_group g cross join lateral lockstep.cursor_at(g, _partition_id) c where g.queue_id = _queue_id
$$;

-- When a group last completed a message in a partition under the ids that it had before it was moved.
create or replace function lockstep.consumed_before(_replaced int[], _partition_id bigint) returns timestamptz language sql stable as $$
    select max(c.consumed_at) from lockstep.cursor c where c.partition_id = _partition_id and c.group_id = any (_replaced)
$$;

-- Creates the cursors that the group, or every group of the queue, lacks in locked partitions; returns their number.
-- The caller has already stored the messages from _first_seqs on; the new cursors stay before those.
create or replace function lockstep.place(
    _queue_id int, _group_id int, _partition_ids bigint[], _first_seqs bigint[] default null, _not_before timestamptz default null
) returns int language plpgsql as $$
declare
    _limited boolean;
    _group_ids int[];
    _made bigint[];
    _acked bigint[];
begin
    if not exists (select 1 from lockstep.consumer_group g where g.queue_id = _queue_id and g.placed_upto is not null) then
        return 0;
    end if;
    with made as (
        insert into lockstep.cursor (partition_id, group_id, acked, due_at, consumed_at)
        select t.id, g.id, b.acked, case
                   when p.last_stored > b.acked and q.delay_seconds + q.window_seconds > 0
                   then lockstep.due_at(t.id, b.acked, q.delay_seconds, q.window_seconds, coalesce(_not_before, g.begun_at))
                   when p.last_stored > b.acked then coalesce(_not_before, g.begun_at) end,
               case when g.replaces <> '{}' then lockstep.consumed_before(g.replaces, t.id) end
        from lockstep.queue q
        join lockstep.consumer_group g on g.queue_id = q.id and g.placed_upto is not null and g.id = coalesce(_group_id, g.id)
        cross join unnest(_partition_ids, _first_seqs) t (id, first_seq)
        -- The same as begin_of, with three probes: calling functions for each row takes three times as long.
        cross join lateral (
            select (select r.first_seq - 1 from lockstep.run r
                    where r.partition_id = t.id and r.segment_id is not null order by r.first_seq limit 1) as start,
                   (select r.last_seq from lockstep.run r
                    where r.partition_id = t.id and r.segment_id is not null order by r.first_seq desc limit 1) as last_stored,
                   coalesce((select r.last_seq from lockstep.run r where r.partition_id = t.id order by r.first_seq desc limit 1), 0) as last_seq
            offset 0
        ) p
        cross join lateral (
            select least(case g.begins when 'start' then coalesce(p.start, p.last_seq) when 'end' then p.last_seq
                                       else lockstep.begin_of(g, t.id) end, t.first_seq - 1) as acked
            offset 0
        ) b
        where q.id = _queue_id
          and (select true from lockstep.cursor c where c.partition_id = t.id and c.group_id = g.id) is null
        order by t.id, g.id
        on conflict do nothing
        returning group_id, partition_id, acked
    )
    select array_agg(m.group_id), array_agg(m.partition_id), array_agg(m.acked) into _group_ids, _made, _acked from made m;
    select q.max_size > 0 into _limited from lockstep.queue q where q.id = _queue_id;
    if _limited and _made is not null then
        perform lockstep.count_moves(array_agg(t.group_id), array_agg(t.partition_id), array_agg(0::bigint), array_agg(t.acked))
        from unnest(_group_ids, _made, _acked) t (group_id, partition_id, acked)
        join lockstep.consumer_group g on g.id = t.group_id and g.begins <> 'end';
    end if;
    return coalesce(cardinality(_made), 0);
end $$;

-- Held for a moment to commit a new group or move one; shared by transactions that remove what all groups have
-- completed.
create or replace function lockstep.completion_lock(_queue_id int, _shared boolean) returns void language plpgsql as $$
begin
    if _shared then
        perform pg_advisory_xact_lock_shared(1819239271, _queue_id);
    else
        perform pg_advisory_xact_lock(1819239271, _queue_id);
    end if;
end $$;

-- Locks what must not change while a group begins.
-- _fenced: no transaction is creating partitions of the queue. Waits for such transactions only if the queue has a
-- max_size, whose counts must not change.
create or replace function lockstep.lock_to_begin(_queue_id int, out _queue lockstep.queue, out _fenced boolean) language plpgsql as $$
begin
    select q.* into _queue from lockstep.queue q where q.id = _queue_id for no key update skip locked;
    _fenced := found;
    if not _fenced then
        -- Prevents deletion, and setting a max_size.
        select q.* into _queue from lockstep.queue q where q.id = _queue_id for key share;
        if _queue.max_size > 0 then
            select q.* into _queue from lockstep.queue q where q.id = _queue_id for no key update;
            _fenced := true;
        end if;
    end if;
    if _queue.id is null then
        raise exception 'the queue is gone' using errcode = 'LS001';
    end if;
    perform lockstep.completion_lock(_queue_id, false);
end $$;

-- Creates the row of a group that begins now; returns its id, or null if a group with this name exists.
create or replace function lockstep.begin_group(
    _queue lockstep.queue, _fenced boolean, _group text, _created_at timestamptz, _mode text,
    _begins text, _begins_at timestamptz, _begins_seq bigint, _replaces int[], _now timestamptz
) returns int language plpgsql as $$
declare
    _id int;
begin
    -- Messages created from now on may have a time before one in the future.
    if _begins = 'time' and _begins_at >= _now then
        _begins := 'end';
    end if;
    insert into lockstep.consumer_group (
        queue_id, name, created_at, mode, begins, begins_at, begins_seq, begun_at, placed_upto, sought_upto, fenced, replaces
    ) values (
        _queue.id, _group, _created_at, _mode, _begins, _begins_at, _begins_seq, _now, 0, 9223372036854775807, _fenced, _replaces
    ) on conflict do nothing returning id into _id;
    if found and _queue.max_size > 0 then
        insert into lockstep.depth (queue_id, group_id, slot, pending)
        select _queue.id, _id, 0, case when _begins = 'end' then 0 else coalesce(sum(d.pending), 0) end
        from lockstep.depth d where d.queue_id = _queue.id and d.group_id = 0;
    end if;
    return _id;
end $$;

-- Creates a group on a queue if it does not exist; returns its id and mode, and whether it has all its cursors. A
-- stored subscription takes precedence over the given one; without a mode, that of the queue applies. The caller
-- refuses a mode that the group does not have.
create or replace function lockstep.subscribe(
    _queue_id int, _group text, _mode text, _from_at timestamptz, _given_mode text, _at timestamptz,
    out _group_id int, out _group_mode text, out _placed boolean
) language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _locked record;
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at, _from_at]), lockstep.need_places('{pop}', array[_queue_id]); end if;
    for _attempt in 1 .. 20 loop
        select g.id, g.mode, g.placed_upto is null into _group_id, _group_mode, _placed
        from lockstep.consumer_group g where g.queue_id = _queue_id and g.name = _group;
        exit when found;
        select * into _locked from lockstep.lock_to_begin(_queue_id);
        select g.id, g.mode, g.placed_upto is null into _group_id, _group_mode, _placed
        from lockstep.consumer_group g where g.queue_id = _queue_id and g.name = _group;
        exit when found;
        if _group = '__QUEUE_MODE__' then
            _mode := 'all';
        else
            insert into lockstep.subscription as s (queue_id, group_name, mode, from_at, created_at)
            values (_queue_id, _group, _mode, _from_at, _now) on conflict do nothing;
            -- When used again, `new` means: since it was first subscribed.
            select case when s.mode = 'new' and s.created_at < _now then 'from' else s.mode end,
                   case when s.mode = 'new' then s.created_at else s.from_at end
            into _mode, _from_at
            from lockstep.subscription s where s.queue_id = _queue_id and s.group_name = _group;
        end if;
        _group_mode := coalesce(_given_mode, (_locked._queue).group_mode);
        _group_id := lockstep.begin_group(
            _locked._queue, _locked._fenced, _group, _now, _group_mode,
            case _mode when 'new' then 'end' when 'from' then 'time' else 'start' end,
            -- Messages created at that time are delivered, so the last one skipped is a microsecond older.
            _from_at - interval '1 microsecond', null, '{}', _now);
        _placed := false;
        exit when _group_id is not null;
    end loop;
    if _group_id is null then
        raise exception 'the group kept changing' using errcode = 'LS001';
    end if;
end $$;

-- The next partitions of a queue in the order of their ids. If the planner believes that a queue has one partition, it
-- prefers to sort all of them over reading the index by id; hence the settings.
create or replace function lockstep.next_partitions(_queue_id int, _after bigint, _partitions int) returns bigint[]
language plpgsql stable set enable_sort = off set enable_incremental_sort = off as $$
begin
    return array(
        select p.id from lockstep.partition p where p.queue_id between _queue_id and _queue_id and p.id > _after
        order by p.queue_id, p.id limit _partitions);
end $$;

-- The same, up to a given partition.
create or replace function lockstep.partitions_between(_queue_id int, _after bigint, _upto bigint) returns setof bigint
language plpgsql stable set enable_sort = off set enable_incremental_sort = off as $$
begin
    return query
    select p.id from lockstep.partition p where p.queue_id between _queue_id and _queue_id and p.id > _after and p.id <= _upto
    order by p.queue_id, p.id;
end $$;

-- Creates some of the cursors that a group lacks: at most _partitions, and while nothing is due for the group, first
-- those of partitions with messages; with _partition_id that partition first. Locked partitions are left for later.
-- _due: there is something for a pop.
-- _more: continue with the next slice at once; if neither _more nor _placed is true, another transaction is in the way.
create or replace function lockstep.place_slice(
    _group_id int, _partition_id bigint, _partitions int, _at timestamptz, out _made int, out _due boolean, out _more boolean, out _placed boolean
) language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _group lockstep.consumer_group;
    _ids bigint[];
    _missing bigint[];
    _locked bigint[];
    _end record;
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.need_groups('{pop}', array[_group_id], array[_partition_id]); end if;
    _made := 0;
    _more := false;
    select g.* into _group from lockstep.consumer_group g where g.id = _group_id;
    _placed := _group.placed_upto is null;
    if _placed then
        return;
    end if;
    if _partition_id is not null then
        _locked := array(select p.id from lockstep.partition p where p.id = _partition_id and p.queue_id = _group.queue_id for no key update skip locked);
        _made := lockstep.place(_group.queue_id, _group_id, _locked);
    end if;
    _due := exists (select 1 from lockstep.cursor c where c.group_id = _group_id and c.due_at <= _now);
    select g.* into _group from lockstep.consumer_group g where g.id = _group_id and g.placed_upto is not null for no key update skip locked;
    if not found then
        return;  -- another session is working on it
    end if;
    if not _due and _group.begins <> 'end' and _group.sought_upto > 0 then
        select s._ids, s._next into _locked, _group.sought_upto from lockstep.seek_unplaced(_group, _partitions) s;
        _made := _made + lockstep.place(_group.queue_id, _group_id, _locked);
        _partitions := _partitions - coalesce(cardinality(_locked), 0);
    end if;
    _ids := lockstep.next_partitions(_group.queue_id, _group.placed_upto, greatest(_partitions, 1));
    if _ids <> '{}' then
        _missing := array(
            -- A look-up per row; an anti-join may read all cursors of the group.
            select t.id from unnest(_ids) t (id)
            where (select true from lockstep.cursor c where c.partition_id = t.id and c.group_id = _group_id) is null);
        _locked := array(select p.id from lockstep.partition p where p.id = any (_missing) order by p.id for no key update skip locked);
        _made := _made + lockstep.place(_group.queue_id, _group_id, _locked);
        if cardinality(_locked) < cardinality(_missing) then
            insert into lockstep.missing_cursor (group_id, partition_id)
            select _group_id, t.id from unnest(_missing) t (id) where t.id <> all (_locked) on conflict do nothing;
        end if;
        _group.placed_upto := _ids[cardinality(_ids)];
    end if;
    _more := cardinality(_ids) >= greatest(_partitions, 1);
    if not _more then
        select * into _end from lockstep.end_placing(_group, _partitions);
        _made := _made + _end._made;
        _more := _end._more;
        _placed := _end._placed;
        if _placed then
            _group.placed_upto := null;
            _group.sought_upto := null;
            _group.replaces := '{}';
        elsif _end._fenced then
            _group.fenced := true;
            _group.placed_upto := 0;
        end if;
    end if;
    update lockstep.consumer_group g
    set placed_upto = _group.placed_upto, sought_upto = _group.sought_upto, fenced = _group.fenced, replaces = _group.replaces where g.id = _group_id;
    _due := _due or exists (select 1 from lockstep.cursor c where c.group_id = _group_id and c.due_at <= _now);
end $$;

-- The same for a pop, which creates cursors only if nothing is due for it; maintenance creates the rest.
create or replace function lockstep.place_for_pop(
    _group_id int, _partition_id bigint, _partitions int, _at timestamptz, out _made int, out _due boolean, out _more boolean, out _placed boolean
) language plpgsql as $$
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.need_groups('{pop}', array[_group_id], array[_partition_id]); end if;
    _due := exists (
        select 1 from lockstep.cursor c
        where c.group_id = _group_id and c.due_at <= coalesce(_at, clock_timestamp()));
    if _due and _partition_id is null then
        _made := 0;
        _more := true;
        _placed := not exists (select 1 from lockstep.consumer_group g where g.id = _group_id and g.placed_upto is not null);
        return;
    end if;
    select s._made, s._due, s._more, s._placed into _made, _due, _more, _placed
    from lockstep.place_slice(_group_id, _partition_id, _partitions, _at) s;
end $$;

-- Waits until nobody makes cursors of a group, but no longer than _lock_ms. A slice makes what another transaction sees only
-- when it is committed, and a pop that finds nothing meanwhile would say so although there is something.
create or replace function lockstep.await_slice(_group_id int, _lock_ms bigint) returns void language plpgsql as $$
begin
    if not lockstep.is_trusted() then perform lockstep.need_groups('{pop}', array[_group_id], array[null::bigint]); end if;
    perform set_config('lock_timeout', _lock_ms::text, true);
    perform 1 from lockstep.consumer_group g where g.id = _group_id for no key update;
exception when lock_not_available then
    null;  -- it takes longer: the pop goes on without it
end $$;

-- Locks partitions that have messages for a group and lack its cursor, newest segments first.
-- _next: segments from this one on were searched.
create or replace function lockstep.seek_unplaced(_group lockstep.consumer_group, _partitions int, out _ids bigint[], out _next bigint) language plpgsql as $$
declare
    _segment record;
    _found bigint[] := '{}';
    _looked int := 0;
begin
    _next := 0;
    for _segment in
        select s.id, s.created_at, s.partition_ids from lockstep.segment s
        where s.queue_id = _group.queue_id and s.id < _group.sought_upto order by s.id desc limit 1000
    loop
        exit when _group.begins = 'time' and _segment.created_at <= _group.begins_at;
        _next := _segment.id;
        _looked := _looked + 1;
        _found := _found || array(
            select distinct t.id from unnest(_segment.partition_ids) t (id)
            where (select true from lockstep.cursor c where c.partition_id = t.id and c.group_id = _group.id) is null
            limit _partitions - cardinality(_found));
        exit when cardinality(_found) >= _partitions;
    end loop;
    _ids := array(select p.id from lockstep.partition p where p.id = any (_found) order by p.id for no key update skip locked);
    if cardinality(_found) >= _partitions and _ids <> '{}' then
        _next := _next + 1;  -- the last one may contain more
    elsif _looked < 1000 and cardinality(_found) < _partitions then
        _next := 0;
    end if;
end $$;

-- What remains after all partitions were visited: those that were locked at the time; and, if partitions may have been
-- committed in the meantime without a cursor, all of them once more, for which the group is _fenced now.
-- _placed: nothing remains.
create or replace function lockstep.end_placing(
    _group lockstep.consumer_group, _partitions int, out _made int, out _more boolean, out _fenced boolean, out _placed boolean
) language plpgsql as $$
declare
    _locked bigint[];
begin
    _locked := array(
        select p.id from lockstep.missing_cursor m join lockstep.partition p on p.id = m.partition_id
        where m.group_id = _group.id order by p.id limit greatest(_partitions, 1) for no key update of p skip locked);
    _made := lockstep.place(_group.queue_id, _group.id, _locked);
    delete from lockstep.missing_cursor m
    where m.group_id = _group.id
      and (m.partition_id = any (_locked) or not exists (select 1 from lockstep.partition p where p.id = m.partition_id));
    _placed := false;
    _fenced := false;
    _more := cardinality(_locked) >= greatest(_partitions, 1);
    if _more or exists (select 1 from lockstep.missing_cursor m where m.group_id = _group.id) then
        return;
    end if;
    if _group.fenced then
        _placed := true;
        return;
    end if;
    perform 1 from lockstep.queue q where q.id = _group.queue_id for no key update skip locked;
    _fenced := found;
    _more := found;
end $$;

-- Moves a group's cursor in one partition, or starts the group anew at another position; returns the number of its
-- cursors. The kind `current`, which gives up what was leased or failed, is handled by seek_current for a whole group.
create or replace function lockstep.seek(
    _group_id int, _partition_id bigint, _kind text, _time timestamptz, _seq bigint, _at timestamptz, out _moved int, out _new_id int
) language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _group lockstep.consumer_group;
    _locked record;
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at, _time]), lockstep.need_groups('{manage}', array[_group_id], array[_partition_id]); end if;
    select g.* into _group from lockstep.consumer_group g where g.id = _group_id;
    if _partition_id is not null and found then
        perform lockstep.seek_partition(_group, _partition_id, _kind, _time, _seq, _now);
        _moved := 1;
        _new_id := _group_id;
        return;
    end if;
    select * into _locked from lockstep.lock_to_begin(_group.queue_id);
    delete from lockstep.consumer_group g where g.id = _group_id returning g.* into _group;
    if not found then
        raise exception 'the group is gone' using errcode = 'LS001';
    end if;
    perform lockstep.bury_group(_group, _now);
    _new_id := lockstep.begin_group(
        _locked._queue, _locked._fenced, _group.name, _group.created_at, _group.mode, _kind, _time, _seq,
        _group_id || case when _group.placed_upto is null then '{}' else _group.replaces end, _now);
    -- References to the group move along, and so does its pause. A running sample has the sums and finds the group
    -- afterwards.
    update lockstep.consumer_group g set paused_at = _group.paused_at where g.id = _new_id and _group.paused_at is not null;
    update lockstep.spark_lease l set group_id = _new_id where l.group_id = _group_id;
    update lockstep.sample_sum s set group_id = _new_id
    where s.ctid = any (array(
        select o.ctid from lockstep.sample_sum o where o.queue_id = _group.queue_id and o.group_id = _group_id for update skip locked));
    _moved := (select count(*) from lockstep.partition p where p.queue_id = _group.queue_id);
end $$;

-- The part of seek that handles a single partition.
create or replace function lockstep.seek_partition(
    _group lockstep.consumer_group, _partition_id bigint, _kind text, _time timestamptz, _seq bigint, _now timestamptz
) returns void language plpgsql as $$
declare
    _queue lockstep.queue;
    _before bigint;
begin
    perform 1 from lockstep.partition p where p.id = _partition_id for no key update;
    perform lockstep.place(_group.queue_id, _group.id, array[_partition_id]);
    perform 1 from lockstep.cursor c where c.partition_id = _partition_id and c.group_id = _group.id for no key update;
    perform 1 from lockstep.delivery d where d.partition_id = _partition_id and d.group_id = _group.id order by d.from_seq for no key update;
    select q.* into _queue from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id where g.id = _group.id;
    if not found then
        raise exception 'the group is gone' using errcode = 'LS001';
    end if;
    _before := (select lockstep.behind(c) from lockstep.cursor c where c.partition_id = _partition_id and c.group_id = _group.id);
    _group.begins := _kind;
    _group.begins_at := _time;
    _group.begins_seq := _seq;
    update lockstep.cursor c
    set acked = t.acked, attempts = 0, lease_id = null, lease_to = null, leased_at = null,
        due_at = lockstep.due_at(c.partition_id, t.acked, _queue.delay_seconds, _queue.window_seconds, _now)
    from (
        select case when _kind = 'current' then o.acked else lockstep.begin_of(_group, _partition_id) end as acked
        from lockstep.cursor o where o.partition_id = _partition_id and o.group_id = _group.id
    ) t
    where c.partition_id = _partition_id and c.group_id = _group.id;
    perform lockstep.shared_seek(_group.id, array[_partition_id], _kind = 'current', _now);
    -- A later statement, which sees a max_size that was just set (depth.sql).
    insert into lockstep.depth as d (queue_id, group_id, slot, pending)
    select q.id, _group.id, 1 + pg_backend_pid() % 16, lockstep.behind(c) - _before
    from lockstep.queue q join lockstep.cursor c on c.partition_id = _partition_id and c.group_id = _group.id
    where q.id = _group.queue_id and q.max_size > 0
    on conflict (queue_id, group_id, slot) do update set pending = d.pending + excluded.pending;
end $$;

-- What a seek would do in one partition, or in the first partitions of the queue; changes and locks nothing.
-- _complete: no partition was left out.
create or replace function lockstep.preview_seek(
    _group_id int, _partition_id bigint, _kind text, _time timestamptz, _seq bigint, _partitions_max int, _at timestamptz,
    out _partitions bigint, out _read_again bigint, out _skipped bigint, out _leases bigint, out _complete boolean
) language plpgsql stable as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _group lockstep.consumer_group;
    _there lockstep.consumer_group;
    _ids bigint[];
begin
    select g.* into _group from lockstep.consumer_group g where g.id = _group_id;
    if not found then
        raise exception 'the group is gone' using errcode = 'LS001';
    end if;
    _there := _group;
    _there.begins := _kind;
    _there.begins_at := _time;
    _there.begins_seq := _seq;
    _ids := case when _partition_id is null then lockstep.next_partitions(_group.queue_id, 0, _partitions_max + 1) else array[_partition_id] end;
    _complete := cardinality(_ids) <= _partitions_max;
    _ids := _ids[:_partitions_max];
    select count(*), coalesce(sum(lockstep.stored_between(t.id, t.upto, t.acked)), 0), coalesce(sum(lockstep.stored_between(t.id, t.acked, t.upto)), 0),
           count(*) filter (where t.leased)
    into _partitions, _read_again, _skipped, _leases
    from (
        select p.id, lockstep.done_upto(p.id, _group_id, c.acked) as acked, lockstep.is_leased(c, _now) is true as leased,
               case when _kind = 'current' then c.acked else lockstep.begin_of(_there, p.id) end as upto
        from unnest(_ids) p (id) cross join lateral lockstep.cursor_at(_group, p.id) c offset 0
    ) t;
end $$;

-- Gives up what a group has leased or failed in the next partitions after a place; returns the last of them, null if
-- there were none. Missing cursors have nothing to give up.
create or replace function lockstep.seek_current(_group_id int, _after bigint, _partitions int, _at timestamptz) returns bigint language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _queue lockstep.queue;
    _ids bigint[];
    _busy bigint[];
begin
    select q.* into _queue from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id where g.id = _group_id;
    if not found then
        raise exception 'the group is gone' using errcode = 'LS001';
    end if;
    _ids := lockstep.next_partitions(_queue.id, _after, _partitions);
    _busy := array(
        select t.id from unnest(_ids) t (id)
        where exists (
            select 1 from lockstep.cursor c
            where c.partition_id = t.id and c.group_id = _group_id and (c.due_at is not null or c.attempts > 0 or c.lease_id is not null))
           or exists (select 1 from lockstep.delivery d where d.partition_id = t.id and d.group_id = _group_id));
    perform 1 from lockstep.partition p where p.id = any (_busy) order by p.id for no key update;
    perform 1 from lockstep.cursor c where c.partition_id = any (_busy) and c.group_id = _group_id order by c.partition_id for no key update;
    perform 1 from lockstep.delivery d where d.partition_id = any (_busy) and d.group_id = _group_id
    order by d.partition_id, d.from_seq for no key update;
    update lockstep.cursor c
    set attempts = 0, lease_id = null, lease_to = null, leased_at = null,
        due_at = lockstep.due_at(c.partition_id, c.acked, _queue.delay_seconds, _queue.window_seconds, _now)
    where c.partition_id = any (_busy) and c.group_id = _group_id;
    perform lockstep.shared_seek(_group_id, _busy, true, _now);
    return _ids[cardinality(_ids)];
end $$;

-- Removes a group from a queue; its cursors are removed in slices. Returns how many it had, and its id; null if it does
-- not exist.
create or replace function lockstep.delete_group(
    _queue_id int, _group text, _forget_subscription boolean, _at timestamptz, out _deleted int, out _deleted_id int
) language plpgsql as $$
declare
    _gone lockstep.consumer_group;
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.need_places('{configure}', array[_queue_id]); end if;
    _deleted := 0;
    -- Only transactions that hold the queue's row count its fill level.
    perform 1 from lockstep.queue q where q.id = _queue_id and q.max_size > 0 for no key update;
    delete from lockstep.consumer_group g where g.queue_id = _queue_id and g.name = _group returning g.* into _gone;
    if found then
        perform lockstep.bury_group(_gone, coalesce(_at, clock_timestamp()));
        _deleted := (select count(*) from lockstep.partition p where p.queue_id = _queue_id);
        _deleted_id := _gone.id;
    end if;
    if _forget_subscription then
        delete from lockstep.subscription s where s.queue_id = _queue_id and s.group_name = _group;
    end if;
end $$;

-- Leaves the cursors of a group whose row is gone to be removed in slices.
create or replace function lockstep.bury_group(_group lockstep.consumer_group, _now timestamptz) returns void language sql as $$
    insert into lockstep.deleted_group (id, queue_id, deleted_at) values (_group.id, _group.queue_id, _now);
    delete from lockstep.missing_cursor m where m.group_id = _group.id;
    delete from lockstep.depth d where d.queue_id = _group.queue_id and d.group_id = _group.id;
$$;

-- Removes cursors and deliveries of a deleted group, from the next _partitions partitions.
-- _more: continue with the next slice at once. A row that is locked, or that a transaction from before the deletion may
-- still write, needs another round, which does not begin at once. The cursors of a moved group stay until the new
-- cursors have been created from them.
create or replace function lockstep.remove_deleted_cursors(_group_id int, _partitions int, out _removed int, out _more boolean) language plpgsql as $$
declare
    _dead lockstep.deleted_group;
    _ids bigint[];
begin
    _removed := 0;
    _more := false;
    select d.* into _dead from lockstep.deleted_group d where d.id = _group_id for update skip locked;
    if not found or exists (select 1 from lockstep.consumer_group g where g.queue_id = _dead.queue_id and _group_id = any (g.replaces)) then
        return;
    end if;
    if _dead.removed_upto = 0 then
        _dead.final := pg_snapshot_xmin(pg_current_snapshot()) > _dead.deleted_by;
    end if;
    _ids := lockstep.next_partitions(_dead.queue_id, _dead.removed_upto, _partitions);
    delete from lockstep.cursor c where c.ctid = any (array(
        select o.ctid from lockstep.cursor o where o.partition_id = any (_ids) and o.group_id = _group_id for update skip locked));
    get diagnostics _removed = row_count;
    delete from lockstep.delivery d where d.ctid = any (array(
        select o.ctid from lockstep.delivery o where o.partition_id = any (_ids) and o.group_id = _group_id for update skip locked));
    _dead.final := _dead.final
        and not exists (select 1 from lockstep.cursor c where c.partition_id = any (_ids) and c.group_id = _group_id)
        and not exists (select 1 from lockstep.delivery d where d.partition_id = any (_ids) and d.group_id = _group_id);
    _more := cardinality(_ids) >= _partitions;
    if not _more and _dead.final then
        delete from lockstep.depth d where d.queue_id = _dead.queue_id and d.group_id = _group_id;
        delete from lockstep.deleted_group d where d.id = _group_id;
        return;
    end if;
    update lockstep.deleted_group d
    set removed_upto = case when _more then _ids[cardinality(_ids)] else 0 end, final = _dead.final where d.id = _group_id;
end $$;

-- The next group after an id that lacks cursors, or is deleted and still has some. The ids of both come from one
-- sequence.
create or replace function lockstep.next_unfinished_group(_after int, out _group_id int, out _deleted boolean) language sql stable as $$
    select t.id, t.deleted from (
        (select g.id, false as deleted from lockstep.consumer_group g where g.placed_upto is not null and g.id > _after order by g.id limit 1)
        union all
        (select d.id, true from lockstep.deleted_group d where d.id > _after order by d.id limit 1)
    ) t
    order by t.id limit 1
$$;
