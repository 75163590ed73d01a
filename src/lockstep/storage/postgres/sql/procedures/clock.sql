-- Handles a clock that was set back: everything that waits for a time of the old clock is moved back as far
-- (rules.due_after_set_back).

-- Reads the clock. If it was set back since the last call, moves what waits in some of the partitions after _after.
-- _looked_at is where to continue, null at the end of the walk. If something was locked, the next call begins another
-- walk. Steps of up to 10 s are ignored: the clock catches up sooner than a walk. A further walk moves again what waits
-- without a lease, which is then tried earlier.
-- Locks: the row of lockstep.clock; group, operation, cursor and delivery rows with SKIP LOCKED.
-- Indexes: partition_pkey, cursor_pkey, delivery_pkey, operation_pending.
create or replace function lockstep.follow_clock(
    _after bigint, _partitions int, _at timestamptz, out _moved bigint, out _looked_at bigint
) language plpgsql as $$
declare
    _now timestamptz;
    _clock lockstep.clock;
    _ids bigint[];
    _waiting bigint;
begin
    insert into lockstep.clock (seen_at) values (coalesce(_at, clock_timestamp())) on conflict do nothing;
    select c.* into _clock from lockstep.clock c for update;
    _now := coalesce(_at, clock_timestamp());
    _moved := 0;
    if _clock.seen_at > _now + interval '10 s' then
        _clock.back := coalesce(_clock.back, interval '0') + (_clock.seen_at - _now);
        _clock.missed := false;
        _after := 0;
    end if;
    if _clock.back is not null then
        _ids := array(select p.id from lockstep.partition p where p.id > _after order by p.id limit _partitions);
        _waiting := lockstep.waiting_in(_ids, _now);
        _moved := lockstep.move_cursors_back(_ids, _clock.back, _now) + lockstep.move_deliveries_back(_ids, _clock.back, _now);
        _clock.missed := _clock.missed or _moved < _waiting;
        if _after = 0 then
            _moved := _moved + lockstep.move_operations_back(_clock.back, _now);
            _clock.missed := not lockstep.move_groups_back(_clock.back, _now) or _clock.missed;
        end if;
        if cardinality(_ids) = _partitions then
            _looked_at := _ids[_partitions];
        else
            _clock.back := case when _clock.missed then _clock.back end;
            _clock.missed := false;
        end if;
    end if;
    update lockstep.clock c set seen_at = _now, back = _clock.back, missed = _clock.missed;
end $$;

-- rules.due_after_set_back. Without a lease, _lease_seconds is null.
create or replace function lockstep.due_after_set_back(_due_at timestamptz, _back interval, _lease_seconds int, _now timestamptz)
returns timestamptz language sql immutable parallel safe as $$
    select least(_due_at, greatest(_due_at - _back, _now + make_interval(secs => _lease_seconds)))
$$;

-- The number of cursors and ranges in flight of some partitions that wait for a time; leases count only if they must be
-- moved.
create or replace function lockstep.waiting_in(_partition_ids bigint[], _now timestamptz) returns bigint language sql stable as $$
    select count(*)
    from unnest(_partition_ids) p (id)
    cross join lateral (
        select c.group_id, c.lease_id, c.due_at from lockstep.cursor c
        where c.partition_id = p.id and c.due_at > _now and c.due_at < 'infinity'
        union all
        select d.group_id, d.lease_id, d.due_at from lockstep.delivery d
        where d.partition_id = p.id and d.due_at > _now and d.due_at < 'infinity'
    ) w
    cross join lateral (select g.queue_id from lockstep.consumer_group g where g.id = w.group_id limit 1) g
    cross join lateral (select q.lease_seconds from lockstep.queue q where q.id = g.queue_id limit 1) q
    where w.lease_id is null or w.due_at > _now + make_interval(secs => q.lease_seconds)
$$;

create or replace function lockstep.move_cursors_back(_partition_ids bigint[], _back interval, _now timestamptz) returns bigint language sql as $$
    with held as materialized (
        select c.partition_id, c.group_id, c.acked, c.lease_id, c.due_at
        from unnest(_partition_ids) p (id)
        cross join lateral (
            select c.* from lockstep.cursor c
            where c.partition_id = p.id and c.due_at > _now and c.due_at < 'infinity' for no key update skip locked
        ) c
    ), moved as (
        update lockstep.cursor c
        -- Delay and window count from the messages' times, which do not change.
        set due_at = least(h.due_at, case
            when h.lease_id is null and q.delay_seconds + q.window_seconds > 0
            then coalesce(lockstep.due_at(h.partition_id, h.acked, q.delay_seconds, q.window_seconds, h.due_at - _back), h.due_at - _back)
            else lockstep.due_after_set_back(h.due_at, _back, case when h.lease_id is not null then q.lease_seconds end, _now) end)
        from held h
        cross join lateral (select g.queue_id from lockstep.consumer_group g where g.id = h.group_id limit 1) g
        cross join lateral (select q.* from lockstep.queue q where q.id = g.queue_id limit 1) q
        where c.partition_id = h.partition_id and c.group_id = h.group_id
          and (h.lease_id is null or h.due_at > _now + make_interval(secs => q.lease_seconds))
        returning 1
    )
    select count(*) from moved
$$;

create or replace function lockstep.move_deliveries_back(_partition_ids bigint[], _back interval, _now timestamptz) returns bigint language sql as $$
    with held as materialized (
        select d.partition_id, d.group_id, d.from_seq, d.lease_id, d.due_at
        from unnest(_partition_ids) p (id)
        cross join lateral (
            select d.* from lockstep.delivery d
            where d.partition_id = p.id and d.due_at > _now and d.due_at < 'infinity' for no key update skip locked
        ) d
    ), moved as (
        update lockstep.delivery d
        set due_at = lockstep.due_after_set_back(h.due_at, _back, case when h.lease_id is not null then q.lease_seconds end, _now)
        from held h
        cross join lateral (select g.queue_id from lockstep.consumer_group g where g.id = h.group_id limit 1) g
        cross join lateral (select q.lease_seconds from lockstep.queue q where q.id = g.queue_id limit 1) q
        where d.partition_id = h.partition_id and d.group_id = h.group_id and d.from_seq = h.from_seq
          and (h.lease_id is null or h.due_at > _now + make_interval(secs => q.lease_seconds))
        returning 1
    )
    select count(*) from moved
$$;

-- Claimed operations get a time of the new clock from their processor.
create or replace function lockstep.move_operations_back(_back interval, _now timestamptz) returns bigint language sql as $$
    with moved as (
        update lockstep.operation o set due_at = o.due_at - _back
        where o.serial = any (array(
            select o.serial from lockstep.operation o where o.pending and o.due_at > _now for update skip locked
        ))
        returning 1
    )
    select count(*) from moved
$$;

-- Cursors that a group still lacks are due from the time when it began. False if another session holds such a group.
create or replace function lockstep.move_groups_back(_back interval, _now timestamptz) returns boolean language plpgsql as $$
begin
    update lockstep.consumer_group g set begun_at = least(g.begun_at - _back, _now)
    where g.id = any (array(
        select g.id from lockstep.consumer_group g where g.placed_upto is not null and g.begun_at > _now for no key update skip locked
    ));
    return not exists (select 1 from lockstep.consumer_group g where g.placed_upto is not null and g.begun_at > _now);
end $$;
