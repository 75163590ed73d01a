-- Groups: where they begin, where they are moved, how they go.
-- Locks, in all of them: the queue row, then its partition rows (by id), then cursor rows.

-- Creates a group on a queue, unless it is there; returns its id and mode. A stored subscription wins over the given one; a
-- mode that is not given is the queue's. A mode that the group does not have is for the caller to refuse.
-- With the queue row locked no partition appears; with the partitions locked no push is in flight that would not
-- see the new cursors: no wake-up is lost.
create or replace function lockstep.subscribe(
    _queue_id int, _group text, _mode text, _from_at timestamptz, _given_mode text, _at timestamptz, out _group_id int, out _group_mode text
) language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _queue lockstep.queue;
begin
    select g.id, g.mode into _group_id, _group_mode from lockstep.consumer_group g where g.queue_id = _queue_id and g.name = _group;
    if found then
        return;
    end if;
    select q.* into _queue from lockstep.queue q where q.id = _queue_id for no key update;
    if not found then
        raise exception 'the queue is gone' using errcode = 'LS001';
    end if;
    select g.id, g.mode into _group_id, _group_mode from lockstep.consumer_group g where g.queue_id = _queue_id and g.name = _group;
    if found then
        return;
    end if;
    if _group = '__QUEUE_MODE__' then
        _mode := 'all';
    else
        insert into lockstep.subscription as s (queue_id, group_name, mode, from_at, created_at)
        values (_queue_id, _group, _mode, _from_at, _now) on conflict do nothing;
        -- Used again, `new` means: since it was first subscribed.
        select case when s.mode = 'new' and s.created_at < _now then 'from' else s.mode end,
               case when s.mode = 'new' then s.created_at else s.from_at end
        into _mode, _from_at
        from lockstep.subscription s where s.queue_id = _queue_id and s.group_name = _group;
    end if;
    -- By a range, and not by one value: so that the index on both is used, and not the whole of the one by id.
    perform 1 from lockstep.partition p
    where p.queue_id between _queue_id and _queue_id and p.id > 0 order by p.queue_id, p.id for no key update;
    insert into lockstep.consumer_group (queue_id, name, created_at, mode)
    values (_queue_id, _group, _now, coalesce(_given_mode, _queue.group_mode)) returning id, mode into _group_id, _group_mode;
    insert into lockstep.cursor (partition_id, group_id, acked, due_at)
    select t.id, _group_id, t.acked, lockstep.due_at(t.id, t.acked, _queue.delay_seconds, _queue.window_seconds, _now)
    from (
        select p.id, case _mode
            when 'new' then lockstep.last_seq(p.id)
            when 'from' then lockstep.seq_at(p.id, _from_at, true)
            else lockstep.start_of(p.id) end as acked
        from lockstep.partition p where p.queue_id = _queue_id
    ) t;
    perform lockstep.recount(_queue_id);
end $$;

-- Moves a group's cursors, on all partitions of its queue or one; returns how many there are.
create or replace function lockstep.seek(_group_id int, _partition_id bigint, _kind text, _time timestamptz, _seq bigint, _at timestamptz)
returns int language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _queue lockstep.queue;
    _moved int;
begin
    select q.* into _queue from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id where g.id = _group_id
    for no key update of q;
    if not found then
        raise exception 'the group is gone' using errcode = 'LS001';
    end if;
    perform lockstep.lock_places(_queue.id, _partition_id);
    update lockstep.cursor c
    set acked = t.acked, attempts = 0, lease_id = null, lease_to = null, leased_at = null,
        due_at = lockstep.due_at(c.partition_id, t.acked, _queue.delay_seconds, _queue.window_seconds, _now)
    from (
        select c.partition_id, case _kind
            when 'start' then lockstep.start_of(c.partition_id)
            when 'end' then lockstep.last_seq(c.partition_id)
            when 'time' then lockstep.seq_at(c.partition_id, _time, false)
            when 'seq' then least(greatest(_seq - 1, lockstep.start_of(c.partition_id)), lockstep.last_seq(c.partition_id))
            else c.acked end as acked
        from lockstep.partition p join lockstep.cursor c on c.partition_id = p.id and c.group_id = _group_id
        where p.queue_id = _queue.id and p.id = coalesce(_partition_id, p.id)
    ) t
    where c.partition_id = t.partition_id and c.group_id = _group_id;
    get diagnostics _moved = row_count;
    perform lockstep.shared_seek(_group_id, _queue.id, _partition_id, _kind = 'current', _now);
    perform lockstep.recount(_queue.id);
    return _moved;
end $$;

-- Removes a group from a queue; returns how many cursors went.
create or replace function lockstep.delete_group(_queue_id int, _group text, _forget_subscription boolean) returns int language plpgsql as $$
declare
    _group_id int;
    _deleted int := 0;
begin
    perform 1 from lockstep.queue q where q.id = _queue_id for no key update;
    perform lockstep.lock_places(_queue_id, null);
    delete from lockstep.consumer_group g where g.queue_id = _queue_id and g.name = _group returning g.id into _group_id;
    if found then
        delete from lockstep.cursor c using lockstep.partition p
        where p.queue_id = _queue_id and c.partition_id = p.id and c.group_id = _group_id;
        get diagnostics _deleted = row_count;
        delete from lockstep.delivery d using lockstep.partition p
        where p.queue_id = _queue_id and d.partition_id = p.id and d.group_id = _group_id;
    end if;
    if _forget_subscription then
        delete from lockstep.subscription s where s.queue_id = _queue_id and s.group_name = _group;
    end if;
    perform lockstep.recount(_queue_id);
    return _deleted;
end $$;
