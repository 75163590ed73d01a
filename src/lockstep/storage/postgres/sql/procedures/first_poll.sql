-- The first polls of groups with the subscription `new`, for queues that do not exist yet.

-- Records a poll, unless an earlier one is recorded that was last seen within _seconds. If there are already _most,
-- those that are too old are removed; if that does not help, the poll is not recorded.
create or replace function lockstep.note_first_poll(
    _queue text, _namespace text, _task text, _group text, _most int, _seconds float8, _at timestamptz
) returns void language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _old_at timestamptz := _now - make_interval(secs => _seconds);
    _seen_at timestamptz;
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.need_names('{pop}', array[coalesce(nullif(_queue, ''), '*')]); end if;
    select f.seen_at into _seen_at from lockstep.first_poll f
    where f.group_name = _group and f.queue_name = _queue and f.namespace = _namespace and f.task = _task;
    -- A poll that is repeated all the time is written only now and then.
    if _seen_at > _now - make_interval(secs => _seconds / 24) then
        return;
    end if;
    if _seen_at is null and (select count(*) from (select 1 from lockstep.first_poll limit _most) f) >= _most then
        delete from lockstep.first_poll f where f.seen_at < _old_at;
        if (select count(*) from (select 1 from lockstep.first_poll limit _most) f) >= _most then
            return;
        end if;
    end if;
    insert into lockstep.first_poll as f (queue_name, namespace, task, group_name, since_at, seen_at)
    values (_queue, _namespace, _task, _group, _now, _now)
    on conflict (group_name, queue_name, namespace, task) do update
    set since_at = case when f.seen_at < _old_at then excluded.since_at else f.since_at end, seen_at = excluded.seen_at;
end $$;

-- Stores the subscription of a group that is about to be created with `new`, if it polled before the queue existed.
-- Polls for a namespace or task count if the queue was created after the first of them.
create or replace function lockstep.use_first_poll(_queue_id int, _group text, _seconds float8, _at timestamptz) returns void language plpgsql as $$
declare
    _old_at timestamptz := coalesce(_at, clock_timestamp()) - make_interval(secs => _seconds);
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.need_places('{pop}', array[_queue_id]); end if;
    insert into lockstep.subscription (queue_id, group_name, mode, from_at, created_at)
    select _queue_id, _group, 'new', null, min(f.since_at)
    from lockstep.first_poll f
    join lockstep.queue q on q.id = _queue_id and (f.queue_name = q.name or (
        f.queue_name = '' and f.namespace in ('', q.namespace) and f.task in ('', q.task) and f.since_at <= q.created_at))
    where f.group_name = _group and f.seen_at >= _old_at
    having min(f.since_at) is not null
    on conflict do nothing;
    delete from lockstep.first_poll f using lockstep.queue q
    where q.id = _queue_id and f.group_name = _group and f.queue_name = q.name;
end $$;

-- Forgets when a group first polled: for one queue and for namespaces and tasks or, with null, for all.
create or replace function lockstep.forget_first_polls(_queue text, _group text) returns void language sql as $$
    delete from lockstep.first_poll f where f.group_name = _group and (_queue is null or f.queue_name in ('', _queue))
$$;
