-- Dead queues: a message that dies is recorded as a dead letter and, if its queue names a dead queue, pushed there in
-- the same transaction.
--
-- Its body may be packed and encrypted, which SQL cannot read. The store therefore makes the push, in the transaction
-- that records the death (storage/postgres/forwarding.py). A trigger enforces this for every source of dead letters
-- (ack, pop, prune, bury): in a transaction that has not declared that it will push, the trigger raises an error and
-- nothing changes; the store then repeats the call in a transaction that declares it. Only deaths in queues with a dead
-- queue pay for this.
-- Locks of that transaction: the partition rows of source and target are locked together, in the order of their ids,
-- before any cursor. A pop cannot know what will die before it holds cursors; it never waits for the target, but tries
-- again.

-- SQLSTATE LS006: a message dies, and this transaction does not push it.
create or replace function lockstep.forward_dead() returns trigger language plpgsql as $$
begin
    select q.dead_queue_id into new.forward_to from lockstep.queue q where q.id = new.queue_id;
    if new.forward_to is not null and coalesce(current_setting('lockstep.forwards', true), '') <> 'on' then
        raise exception 'a message dies whose queue has a dead queue' using errcode = 'LS006';
    end if;
    return new;
end $$;
create or replace trigger dead_letter_forward before insert on lockstep.dead_letter for each row execute function lockstep.forward_dead();

-- The existing partitions to which messages of these partitions go when they die.
create or replace function lockstep.dead_targets(_partition_ids bigint[]) returns bigint[] language sql stable as $$
    select coalesce(array_agg(distinct t.id), '{}')
    from unnest(_partition_ids) s (id)
    cross join lateral (select p.queue_id, p.name from lockstep.partition p where p.id = s.id limit 1) p
    join lockstep.queue q on q.id = p.queue_id
    cross join lateral (select t.id from lockstep.partition t where t.queue_id = q.dead_queue_id and t.name = p.name limit 1) t
$$;

-- Declares that this transaction pushes the messages that die in it; returns the given partitions and those to which
-- their messages go when they die.
create or replace function lockstep.begin_forwarding(_partition_ids bigint[]) returns bigint[] language plpgsql as $$
begin
    perform set_config('lockstep.forwards', 'on', true);
    return _partition_ids || lockstep.dead_targets(_partition_ids);
end $$;

-- The dead letters of this transaction that must be pushed, oldest first, with their targets and the places of their
-- messages.
create or replace function lockstep.take_forwards() returns table (
    dead_queue text, partition_name text, group_name text, attempts int, error text,
    queue_name text, partition_id bigint, seq bigint, segment_id bigint, ordinal int, id bigint
) language plpgsql as $$
#variable_conflict use_column
declare
    _ids bigint[];
    _targets int[];
begin
    -- Two statements, because the plan of a join may start with all dead letters.
    select array_agg(f.id order by f.id), array_agg(f.forward_to order by f.id) into _ids, _targets
    from lockstep.dead_letter f where f.forward_to is not null;
    if not lockstep.is_trusted() then
        perform lockstep.need_places('{pop}', array(select d.queue_id from lockstep.dead_letter d where d.id = any (_ids)));
    end if;
    update lockstep.dead_letter d set forward_to = null where d.id = any (_ids);
    return query
    select t.name, p.name, d.group_name, d.attempts, d.error, q.name, d.partition_id, d.seq,
           r.segment_id, (r.ordinal + d.seq - r.first_seq)::int, d.id
    from unnest(_ids, _targets) f (id, forward_to)
    cross join lateral (select d.* from lockstep.dead_letter d where d.id = f.id limit 1) d
    join lockstep.queue q on q.id = d.queue_id
    join lockstep.queue t on t.id = f.forward_to
    cross join lateral (select p.name from lockstep.partition p where p.id = d.partition_id limit 1) p
    cross join lateral lockstep.runs_between(d.partition_id, d.seq - 1, d.seq) r
    order by d.id;
end $$;

-- Records where the copies of dead letters are.
create or replace function lockstep.note_copies(_ids bigint[], _partition_ids bigint[], _seqs bigint[]) returns void language plpgsql as $$
begin
    if not lockstep.is_trusted() then
        perform lockstep.need_places('{pop}', array(select d.queue_id from lockstep.dead_letter d where d.id = any (_ids))),
                lockstep.need_places('{push}', '{}', _partition_ids);
    end if;
    update lockstep.dead_letter d set copy_partition_id = t.partition_id, copy_seq = t.seq
    from unnest(_ids, _partition_ids, _seqs) t (id, partition_id, seq) where d.id = t.id;
end $$;

-- Whether a queue may have the requested dead queue, or be one. Locks its row and that of the dead queue. Returns null,
-- or the reason of the refusal.
create or replace function lockstep.refuse_dead_queue(_queue text, _dead_queue text, _max_size bigint) returns text language sql stable as $$
    select case
        when _dead_queue is null then (
            select format('queue %s is the dead queue of %s: it cannot have a max_size', _queue, s.name)
            from lockstep.queue q join lockstep.queue s on s.dead_queue_id = q.id where q.name = _queue and _max_size > 0 order by s.name limit 1)
        when _dead_queue = _queue then 'a queue cannot be its own dead queue'
        when not exists (select 1 from lockstep.queue d where d.name = _dead_queue) then format('the dead queue %s does not exist', _dead_queue)
        else coalesce(
            (select case when d.dead_queue_id is not null then format('the dead queue %s has a dead queue of its own', _dead_queue)
                         when d.max_size > 0 then format('the dead queue %s has a max_size: a message that dies must find room', _dead_queue) end
             from lockstep.queue d where d.name = _dead_queue),
            (select format('queue %s is the dead queue of %s: it cannot have one of its own', _queue, s.name)
             from lockstep.queue q join lockstep.queue s on s.dead_queue_id = q.id where q.name = _queue order by s.name limit 1))
    end
$$;

-- Takes messages that go back to where they came from out of a dead queue; returns which of the requested ones. Leaves
-- messages that queue mode has done, that are under a live lease of any group, or whose dead letter another session
-- holds because it redrives it. Their dead letters are removed as well. The partitions are locked.
create or replace function lockstep.take_dead(
    _partition_ids bigint[], _seqs bigint[], _trace_ids uuid[], _origin_ids bigint[], _origin_seqs bigint[], _origin_groups text[], _at timestamptz
) returns boolean[] language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _ids bigint[];
    _of int[];
    _held bigint[];
    _taken boolean[];
begin
    -- The cursors of source and target partitions, together and in order.
    perform lockstep.lock_cursors(_partition_ids || _origin_ids);
    select array_agg(d.id), array_agg(t.o) into _ids, _of
    from unnest(_partition_ids, _seqs, _origin_ids, _origin_seqs, _origin_groups) with ordinality t (partition_id, seq, origin_id, origin_seq, group_name, o)
    join lockstep.dead_letter d on d.partition_id = t.origin_id and d.seq = t.origin_seq and d.group_name = t.group_name
        and (d.copy_seq is null or (d.copy_partition_id = t.partition_id and d.copy_seq = t.seq));
    _held := array(select d.id from lockstep.dead_letter d where d.id = any (_ids) for update skip locked);
    select array_agg(lockstep.is_takeable(t.partition_id, t.seq, _now) and not exists (
        select 1 from unnest(_ids, _of) l (id, o) where l.o = t.o and l.id <> all (_held)) order by t.o) into _taken
    from unnest(_partition_ids, _seqs) with ordinality t (partition_id, seq, o);
    perform lockstep.remove_copies(array_agg(t.partition_id), array_agg(t.seq), array_agg(t.trace_id), _now)
    from unnest(_partition_ids, _seqs, _trace_ids, _taken) t (partition_id, seq, trace_id, taken) where t.taken;
    delete from lockstep.dead_letter d using unnest(_ids, _of) l (id, o) where d.id = l.id and _taken[l.o];
    return _taken;
end $$;

-- Takes the copies of dead letters that are redriven to _origin_ids out of their dead queues. Returns which of them may
-- be redriven: not if the copy is under a live lease nor, unless _with_done, if queue mode has completed the copy.
-- Copies that are gone or done stay unchanged; a dead letter may have none. The partitions are locked.
create or replace function lockstep.take_copies(
    _partition_ids bigint[], _seqs bigint[], _trace_ids uuid[], _origin_ids bigint[], _with_done boolean, _at timestamptz
) returns boolean[] language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _free boolean[];
begin
    perform lockstep.lock_cursors(_partition_ids || _origin_ids);
    select array_agg(not lockstep.is_under_lease(t.partition_id, t.seq, _now)
                     and (_with_done or t.seq is null or not lockstep.is_copy_done(t.partition_id, t.seq)) order by t.o) into _free
    from unnest(_partition_ids, _seqs) with ordinality t (partition_id, seq, o);
    perform lockstep.remove_copies(array_agg(t.partition_id), array_agg(t.seq), array_agg(t.trace_id), _now)
    from unnest(_partition_ids, _seqs, _trace_ids, _free) t (partition_id, seq, trace_id, free)
    where t.free and t.seq is not null and lockstep.is_takeable(t.partition_id, t.seq, _now);
    return _free;
end $$;

-- Removes single stored messages of locked partitions, with everything that refers to them, and moves the cursors past
-- them. The caller passes their trace ids: the index is by trace, and this does not read packed bodies.
create or replace function lockstep.remove_copies(_partition_ids bigint[], _seqs bigint[], _trace_ids uuid[], _now timestamptz) returns void language plpgsql as $$
declare
    _copies record;
    _queue lockstep.queue;
    _segments bigint[];
begin
    for _copies in
        select t.partition_id, array_agg(t.seq order by t.seq) as seqs, array_agg(t.trace_id order by t.seq) as trace_ids
        from unnest(_partition_ids, _seqs, _trace_ids) t (partition_id, seq, trace_id)
        group by t.partition_id order by t.partition_id
    loop
        select q.* into _queue from lockstep.partition p join lockstep.queue q on q.id = p.queue_id where p.id = _copies.partition_id;
        if _queue.max_size > 0 then
            perform lockstep.count_pruned(_queue.id, array_fill(_copies.partition_id, array[cardinality(_copies.seqs)]), _copies.seqs, _copies.seqs);
        end if;
        _segments := array(
            select distinct r.segment_id from unnest(_copies.seqs) t (seq)
            cross join lateral lockstep.runs_between(_copies.partition_id, t.seq - 1, t.seq) r);
        perform lockstep.remove_runs(_copies.partition_id, t.seq, t.seq) from unnest(_copies.seqs) t (seq);
        delete from lockstep.dedup_uuid d where d.partition_id = _copies.partition_id and d.seq = any (_copies.seqs);
        delete from lockstep.dedup_text d where d.partition_id = _copies.partition_id and d.seq = any (_copies.seqs);
        delete from lockstep.trace_index x using unnest(_copies.seqs, _copies.trace_ids) t (seq, trace_id)
        where x.trace_id = t.trace_id and x.partition_id = _copies.partition_id and x.seq = t.seq;
        delete from lockstep.dead_letter d where d.partition_id = _copies.partition_id and d.seq = any (_copies.seqs);
        perform lockstep.remove_trace_events(_copies.partition_id, t.seq, t.seq) from unnest(_copies.seqs) t (seq);
        perform lockstep.sweep_segments(_segments);
        perform lockstep.pass_removed(array[_copies.partition_id], _queue, _now, _now);
    end loop;
end $$;

-- Whether queue mode has passed a message and does not have it in flight.
create or replace function lockstep.is_done_in_queue_mode(_partition_id bigint, _seq bigint) returns boolean language sql stable as $$
    select exists (
        select 1 from lockstep.partition p
        join lockstep.consumer_group g on g.queue_id = p.queue_id and g.name = '__QUEUE_MODE__'
        cross join lateral lockstep.cursor_at(g, p.id) c
        where p.id = _partition_id and _seq <= c.acked
          -- The cursor of a shared group is past everything handed out; messages of it that are not done are in flight.
          and not exists (
              select 1 from lockstep.delivery d
              where d.partition_id = c.partition_id and d.group_id = c.group_id and _seq between d.from_seq and d.to_seq)
    )
$$;

-- Whether a message is stored, not done by queue mode, and under no live lease.
create or replace function lockstep.is_takeable(_partition_id bigint, _seq bigint, _now timestamptz) returns boolean language sql stable as $$
    select exists (select 1 from lockstep.runs_between(_partition_id, _seq - 1, _seq))
       and not lockstep.is_under_lease(_partition_id, _seq, _now)
       and not lockstep.is_done_in_queue_mode(_partition_id, _seq)
$$;

-- Whether queue mode has completed a stored copy. A copy that died there is not done.
create or replace function lockstep.is_copy_done(_partition_id bigint, _seq bigint) returns boolean language sql stable as $$
    select lockstep.is_done_in_queue_mode(_partition_id, _seq)
       and exists (select 1 from lockstep.runs_between(_partition_id, _seq - 1, _seq))
       and not exists (
           select 1 from lockstep.dead_letter d
           where d.partition_id = _partition_id and d.seq = _seq and d.group_name = '__QUEUE_MODE__')
$$;

-- Records which copies queue mode has completed, for messages that retention is about to remove.
create or replace function lockstep.note_done_copies(_partition_ids bigint[], _from bigint[], _to bigint[]) returns void language sql as $$
    update lockstep.dead_letter d set copy_done = true
    from unnest(_partition_ids, _from, _to) t (partition_id, first_seq, last_seq)
    where d.copy_partition_id = t.partition_id and d.copy_seq between t.first_seq and t.last_seq
      and not d.copy_done and lockstep.is_copy_done(d.copy_partition_id, d.copy_seq)
$$;

-- Whether a message is under a live lease of any group.
create or replace function lockstep.is_under_lease(_partition_id bigint, _seq bigint, _now timestamptz) returns boolean language sql stable as $$
    -- First all cursors of the partition, then those with a lease, so that the plan does not search all leases of the
    -- store.
    select exists (
        select 1 from (select c.* from lockstep.cursor c where c.partition_id = _partition_id offset 0) c
        where c.lease_id is not null and c.due_at > _now and _seq > c.acked and _seq <= c.lease_to and lockstep.is_group(c.group_id)
    ) or exists (
        select 1 from lockstep.delivery d join lockstep.consumer_group g on g.id = d.group_id
        where d.partition_id = _partition_id and d.lease_id is not null and d.due_at > _now and _seq between d.from_seq and d.to_seq
    )
$$;
