-- Queues as a whole: configure, clear, delete.
-- Locks, in all of them: the queue row, then its partition rows (by id), then cursor rows (by partition and group).

create or replace function lockstep.configure(
    _queue text, _namespace text, _task text,
    _lease_seconds int, _retry_limit int, _retry_delay_ms bigint, _retry_backoff double precision, _retry_delay_ms_max bigint,
    _on_exhausted text, _max_size bigint, _ttl_seconds int, _priority int, _delay_seconds int, _window_seconds int,
    _retention_enabled boolean, _retention_seconds int, _completed_retention_seconds int, _max_wait_seconds int,
    _encryption boolean, _compression text, _dead_letter_queue boolean, _dlq_after_max_retries boolean,
    _expire_seconds int, _on_expired text, _dead_queue text, _partitions int, _group_mode text, _at timestamptz
) returns int language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _queue_id int;
    _refused text;
begin
    perform lockstep.create_queue(_queue, _namespace, _task, _now);
    perform 1 from lockstep.queue q where q.name in (_queue, _dead_queue) order by q.name for no key update;
    _refused := lockstep.refuse_dead_queue(_queue, _dead_queue, _max_size);
    if _refused is not null then
        raise exception '%', _refused using errcode = 'LS005';
    end if;
    perform lockstep.resolve(_queue, array['Default'] || array(select n::text from generate_series(0, _partitions - 1) n), _now);
    update lockstep.queue q
    set namespace = coalesce(_namespace, q.namespace), task = coalesce(_task, q.task), configured_at = _now,
        lease_seconds = _lease_seconds, retry_limit = _retry_limit, retry_delay_ms = _retry_delay_ms, retry_backoff = _retry_backoff,
        retry_delay_ms_max = _retry_delay_ms_max, on_exhausted = _on_exhausted, max_size = _max_size, ttl_seconds = _ttl_seconds,
        priority = _priority, delay_seconds = _delay_seconds, window_seconds = _window_seconds, retention_enabled = _retention_enabled,
        retention_seconds = _retention_seconds, completed_retention_seconds = _completed_retention_seconds,
        max_wait_seconds = _max_wait_seconds, encryption = _encryption, compression = _compression,
        dead_letter_queue = _dead_letter_queue, dlq_after_max_retries = _dlq_after_max_retries, expire_seconds = _expire_seconds,
        on_expired = _on_expired, dead_queue_id = (select d.id from lockstep.queue d where d.name = _dead_queue), partitions = _partitions,
        group_mode = _group_mode
    where q.name = _queue
    returning q.id into _queue_id;
    if not found then
        raise exception 'the queue is being deleted' using errcode = 'LS001';
    end if;
    perform lockstep.recount(_queue_id);
    return _queue_id;
end $$;

create or replace function lockstep.delete_queue(_queue text) returns boolean language plpgsql as $$
declare
    _queue_id int;
begin
    select q.id into _queue_id from lockstep.queue q where q.name = _queue for update;
    if not found then
        return false;
    end if;
    if exists (select 1 from lockstep.queue s where s.dead_queue_id = _queue_id) then
        raise exception 'queue % is the dead queue of %', _queue, (select min(s.name) from lockstep.queue s where s.dead_queue_id = _queue_id)
            using errcode = 'LS007';
    end if;
    -- Whoever pushes to the queue holds a partition lock; after this, nobody does.
    perform 1 from lockstep.partition p where p.queue_id = _queue_id order by p.id for update;
    delete from lockstep.cursor c using lockstep.partition p where p.queue_id = _queue_id and c.partition_id = p.id;
    delete from lockstep.delivery d using lockstep.partition p where p.queue_id = _queue_id and d.partition_id = p.id;
    delete from lockstep.dedup_uuid d using lockstep.partition p where p.queue_id = _queue_id and d.partition_id = p.id;
    delete from lockstep.dedup_text d using lockstep.partition p where p.queue_id = _queue_id and d.partition_id = p.id;
    delete from lockstep.trace_index t using lockstep.partition p where p.queue_id = _queue_id and t.partition_id = p.id;
    delete from lockstep.run r using lockstep.partition p where p.queue_id = _queue_id and r.partition_id = p.id;
    delete from lockstep.segment s where s.queue_id = _queue_id;
    delete from lockstep.dead_letter d where d.queue_id = _queue_id;
    perform lockstep.remove_trace_events_of_queue(_queue_id);
    delete from lockstep.stream_state s using lockstep.partition p where p.queue_id = _queue_id and s.partition_id = p.id;
    perform lockstep.remove_scheduled(_queue_id);
    delete from lockstep.depth d where d.queue_id = _queue_id;
    delete from lockstep.subscription s where s.queue_id = _queue_id;
    delete from lockstep.spark_position p where p.queue_id = _queue_id;
    delete from lockstep.spark_removal r where r.queue_id = _queue_id;
    delete from lockstep.consumer_group g where g.queue_id = _queue_id;
    delete from lockstep.partition p where p.queue_id = _queue_id;
    delete from lockstep.queue q where q.id = _queue_id;
    return true;
end $$;

-- Removes stored messages of a queue, or of one partition; returns how many. With _unleased only those that are
-- under no live lease.
create or replace function lockstep.clear(_queue_id int, _partition_id bigint, _unleased boolean, _at timestamptz) returns bigint language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _queue lockstep.queue;
    _id bigint;
    _leased record;
    _from bigint;
    _removed bigint := 0;
begin
    select q.* into _queue from lockstep.queue q where q.id = _queue_id for no key update;
    if not found then
        raise exception 'the queue is gone' using errcode = 'LS001';
    end if;
    perform lockstep.lock_places(_queue_id, _partition_id);
    if _partition_id is null and not _unleased then
        perform lockstep.note_unread(_queue_id, array_agg(p.id), array_agg(0::bigint), array_agg(lockstep.last_seq(p.id)))
        from lockstep.partition p where p.queue_id = _queue_id and exists (select 1 from lockstep.spark_position s where s.queue_id = _queue_id);
        _removed := lockstep.remove_all(_queue_id);
    end if;
    for _id in
        select p.id from lockstep.partition p
        where not (_partition_id is null and not _unleased) and p.queue_id = _queue_id and p.id = coalesce(_partition_id, p.id) order by p.id
    loop
        _from := lockstep.start_of(_id) + 1;
        for _leased in
            select c.acked + 1 as first_seq, c.lease_to as last_seq from lockstep.cursor c
            where c.partition_id = _id and c.lease_id is not null and c.due_at > _now and _unleased
            union all
            select d.from_seq, d.to_seq from lockstep.delivery d
            where d.partition_id = _id and d.lease_id is not null and d.due_at > _now and _unleased
            order by 1
        loop
            perform lockstep.note_unread(_queue_id, array[_id], array[_from], array[_leased.first_seq - 1]);
            _removed := _removed + lockstep.remove(_id, _from, _leased.first_seq - 1);
            _from := greatest(_from, _leased.last_seq + 1);
        end loop;
        perform lockstep.note_unread(_queue_id, array[_id], array[_from], array[lockstep.last_seq(_id)]);
        _removed := _removed + lockstep.remove(_id, _from, lockstep.last_seq(_id));
        perform lockstep.shared_pass_removed(array[_id], case when _unleased then _now end);
        -- A cursor whose head was removed starts anew with what is left.
        update lockstep.cursor c
        set acked = t.acked, attempts = 0, lease_id = null, lease_to = null, leased_at = null,
            due_at = lockstep.due_at(_id, t.acked, _queue.delay_seconds, _queue.window_seconds, _now)
        from (
            select c.group_id, coalesce(lockstep.next_seq(_id, c.acked) - 1, lockstep.last_seq(_id)) as acked
            from lockstep.cursor c where c.partition_id = _id
        ) t
        where c.partition_id = _id and c.group_id = t.group_id
          and (not _unleased or (t.acked > c.acked and not (c.lease_id is not null and c.due_at > _now)));
    end loop;
    perform lockstep.recount(_queue_id);
    return _removed;
end $$;

-- Removes every stored message of a locked queue at once, and puts its cursors at the end; returns how many.
create or replace function lockstep.remove_all(_queue_id int) returns bigint language plpgsql as $$
declare
    _partition_ids bigint[];
    _last_seqs bigint[];
    _removed bigint;
begin
    with gone as (
        delete from lockstep.run r using lockstep.partition p where p.queue_id = _queue_id and r.partition_id = p.id
        returning r.partition_id, r.last_seq, case when r.segment_id is null then 0 else r.last_seq - r.first_seq + 1 end as n
    ), per_partition as (
        select g.partition_id, max(g.last_seq) as last_seq, sum(g.n) as n from gone g group by g.partition_id
    )
    select array_agg(g.partition_id), array_agg(g.last_seq), coalesce(sum(g.n), 0) into _partition_ids, _last_seqs, _removed
    from per_partition g;
    insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
    select t.id, t.seq, t.seq, null, 0 from unnest(_partition_ids, _last_seqs) t (id, seq);
    delete from lockstep.segment s where s.queue_id = _queue_id;
    delete from lockstep.dedup_uuid d using lockstep.partition p where p.queue_id = _queue_id and d.partition_id = p.id;
    delete from lockstep.dedup_text d using lockstep.partition p where p.queue_id = _queue_id and d.partition_id = p.id;
    delete from lockstep.trace_index t using lockstep.partition p where p.queue_id = _queue_id and t.partition_id = p.id;
    delete from lockstep.dead_letter d where d.queue_id = _queue_id;
    perform lockstep.remove_trace_events_of_queue(_queue_id);
    update lockstep.cursor c
    set acked = lockstep.last_seq(p.id), attempts = 0, lease_id = null, lease_to = null, leased_at = null, due_at = null
    from lockstep.partition p where p.queue_id = _queue_id and c.partition_id = p.id;
    delete from lockstep.delivery d using lockstep.partition p where p.queue_id = _queue_id and d.partition_id = p.id;
    return _removed;
end $$;

-- Removes the stored messages with seqs in [_from, _to] of a locked partition, with all that points at them; returns
-- how many. One removed run takes their place, joined with removed neighbours; at the start of the partition none is
-- needed, unless it is the last run, from which the next push numbers.
create or replace function lockstep.remove(_partition_id bigint, _from bigint, _to bigint) returns bigint language plpgsql as $$
declare
    _segments bigint[];
    _removed bigint;
begin
    if _to < _from then
        return 0;
    end if;
    select array_agg(distinct r.segment_id), coalesce(sum(least(r.last_seq, _to) - greatest(r.first_seq, _from) + 1), 0)
    into _segments, _removed
    from lockstep.runs_between(_partition_id, _from - 1, _to) r;
    if _removed = 0 then
        return 0;
    end if;
    perform lockstep.remove_runs(_partition_id, _from, _to);
    perform lockstep.forget(_partition_id, _from, _to);
    perform lockstep.sweep_segments(_segments);
    return _removed;
end $$;

-- The part of remove that is about runs, for seqs of which some are stored.
create or replace function lockstep.remove_runs(_partition_id bigint, _from bigint, _to bigint) returns void language plpgsql as $$
declare
    _mark bigint;
begin
    select min(r.first_seq), max(r.last_seq) into _from, _to from (
        select greatest(r.first_seq, _from) as first_seq, least(r.last_seq, _to) as last_seq
        from lockstep.runs_between(_partition_id, _from - 1, _to) r
        union all
        select r.first_seq, r.last_seq from lockstep.run r
        where r.partition_id = _partition_id and r.segment_id is null and r.first_seq <= _to + 1 and r.last_seq >= _from - 1
    ) r;
    -- The ends of runs that reach over the range.
    insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
    select r.partition_id, _to + 1, r.last_seq, r.segment_id, (r.ordinal + _to + 1 - r.first_seq)::int
    from lockstep.runs_between(_partition_id, _to - 1, _to) r where r.first_seq <= _to and r.last_seq > _to;
    update lockstep.run r set last_seq = _from - 1
    where r.partition_id = _partition_id and r.first_seq < _from and r.last_seq >= _from;
    delete from lockstep.run r where r.partition_id = _partition_id and r.first_seq between _from and _to;
    if not exists (select 1 from lockstep.run r where r.partition_id = _partition_id and r.first_seq > _to) then
        _mark := case when exists (select 1 from lockstep.run r where r.partition_id = _partition_id) then _from else _to end;
        insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal) values (_partition_id, _mark, _to, null, 0);
    elsif exists (select 1 from lockstep.run r where r.partition_id = _partition_id and r.first_seq < _from) then
        insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal) values (_partition_id, _from, _to, null, 0);
    end if;
end $$;

-- Removes what points at removed messages.
create or replace function lockstep.forget(_partition_id bigint, _from bigint, _to bigint) returns void language sql as $$
    delete from lockstep.dedup_uuid d where d.partition_id = _partition_id and d.seq between _from and _to;
    delete from lockstep.dedup_text d where d.partition_id = _partition_id and d.seq between _from and _to;
    delete from lockstep.trace_index t where t.partition_id = _partition_id and t.seq between _from and _to;
    delete from lockstep.dead_letter d where d.partition_id = _partition_id and d.seq between _from and _to;
    select lockstep.remove_trace_events(_partition_id, _from, _to);
$$;

-- Removes those of the segments that no run needs any more; their manifests say where to look.
create or replace function lockstep.sweep_segments(_segment_ids bigint[]) returns void language sql as $$
    delete from lockstep.segment s
    where s.id = any (_segment_ids) and not exists (
        select 1 from unnest(s.partition_ids, s.first_seqs, s.counts) m (partition_id, first_seq, n)
        join lockstep.run r on r.partition_id = m.partition_id and r.segment_id = s.id
            and r.first_seq between m.first_seq and m.first_seq + m.n - 1
    )
$$;
