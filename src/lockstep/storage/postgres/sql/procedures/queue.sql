-- Queues as a whole: configure and clear. Deletion is in deleted_queue.sql.
-- Locks, in all functions: the queue row, then its partition rows (by id), then cursor rows (by partition and group).

-- Why the group mode of a queue cannot be changed; null if it can. Existing groups keep their mode, so the change would
-- have no effect on them.
create or replace function lockstep.refuse_group_mode(_queue text, _mode text) returns text language sql stable as $$
    select format(
        'group_mode cannot become %s: group %s of queue %s is %s and stays so; delete the group first, or give new groups their mode when they begin',
        _mode, g.name, q.name, g.mode)
    from lockstep.queue q join lockstep.consumer_group g on g.queue_id = q.id
    where q.name = _queue and q.group_mode <> _mode and g.mode <> _mode order by g.name limit 1
$$;

-- The options of a queue by name (core/policy.py), among its other columns.
create or replace function lockstep.queue_options(_queue_id int) returns jsonb language sql stable as $$
    select to_jsonb(q) || jsonb_build_object('dead_queue', (select d.name from lockstep.queue d where d.id = q.dead_queue_id))
    from lockstep.queue q where q.id = _queue_id
$$;

-- Creates the queue if it is missing, and sets the given options; each has a column of its name, except for dead_queue.
-- A configuration without a group mode means ordered, so only an explicit mode is refused. Encryption that is on stays
-- on: stop_encryption switches it off. When it is switched on, stored messages may stay unencrypted, but no later ones:
-- every push holds a partition or the queue, so all of them are locked first.
create or replace function lockstep.configure(_queue text, _namespace text, _task text, _options jsonb, _at timestamptz) returns int language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _given lockstep.queue := jsonb_populate_record(null::lockstep.queue, _options);
    _dead_queue text := _options ->> 'dead_queue';
    _queue_id int;
    _refused text;
    _was_limited boolean;
    _was_encrypted boolean;
begin
    if not lockstep.is_trusted() then
        perform lockstep.check_times(array[_at]);
        perform lockstep.need_names('{manage}', array[_queue]), lockstep.need_names('{push}', array_remove(array[_dead_queue], null));
        -- A namespace or task that differs from the name would make it visible to other pops by namespace or task.
        if coalesce(nullif(_namespace, ''), split_part(_queue, '.', 1)) <> split_part(_queue, '.', 1)
           or coalesce(nullif(_task, ''), split_part(_queue, '.', 2)) <> split_part(_queue, '.', 2) then
            perform lockstep.need_names('{manage}', '{*}');
        end if;
        if _options ?| array['id', 'name', 'namespace', 'task', 'created_at', 'configured_at', 'dead_queue_id', 'sealed_after', 'waiting_sealed_after', 'expiring'] then
            raise exception 'the options have what is no option of a queue' using errcode = 'LS004';
        end if;
    end if;
    perform lockstep.create_queue(_queue, _namespace, _task, _now);
    -- Stronger than any other lock except for deletion: a group that begins now is counted, here or by itself.
    perform 1 from lockstep.queue q where q.name in (_queue, _dead_queue) order by q.name for update;
    select q.max_size > 0, q.encryption, q.id into _was_limited, _was_encrypted, _queue_id from lockstep.queue q where q.name = _queue;
    if _was_encrypted then
        _given.encryption := true;
    elsif _given.encryption then
        perform lockstep.begin_encryption(_queue_id);
    end if;
    _refused := coalesce(
        lockstep.refuse_dead_queue(_queue, _dead_queue, _given.max_size),
        case when _given.group_mode = 'shared' then lockstep.refuse_group_mode(_queue, _given.group_mode) end);
    if _refused is not null then
        raise exception '%', _refused using errcode = 'LS005';
    end if;
    perform lockstep.resolve(_queue, array['Default'] || array(select n::text from generate_series(0, _given.partitions - 1) n), _now);
    execute (
        select format('
            update lockstep.queue q
            set namespace = coalesce($3, q.namespace), task = coalesce($4, q.task), configured_at = $5,
                dead_queue_id = (select d.id from lockstep.queue d where d.name = $6), %s
            where q.name = $2 returning q.id', string_agg(format('%1$I = ($1).%1$I', o.name), ', '))
        from jsonb_object_keys(_options - 'dead_queue') o (name)
    ) into _queue_id using _given, _queue, _namespace, _task, _now, _dead_queue;
    if _queue_id is null then
        raise exception 'the queue is being deleted' using errcode = 'LS001';
    end if;
    -- Counted from the moment when it has a limit; a new limit changes no count.
    if _was_limited is distinct from (_given.max_size > 0) then
        perform lockstep.recount(_queue_id);
    end if;
    return _queue_id;
end $$;

-- Clear works in slices, each a transaction of its own and bounded, however much there is. First, unless leases are
-- spared, the cursors of some partitions at a time move to the end (clear_places); then messages are removed, oldest
-- first, from some segments at a time (clear_find, clear). Messages pushed in the meantime are removed as well, or
-- stay: in that case no cursor has passed them, because moving one requires the partition lock, and the end of the
-- messages is determined after all cursors have moved.

-- Moves the cursors of the next partitions after a place to the end, without leases; returns the last of them, null if
-- there were none.
create or replace function lockstep.clear_places(_queue_id int, _partition_id bigint, _after bigint, _partitions int) returns bigint language plpgsql as $$
declare
    _limited boolean;
    _ids bigint[];
begin
    select q.max_size > 0 into _limited from lockstep.queue q where q.id = _queue_id for share;
    if not found then
        raise exception 'the queue is gone' using errcode = 'LS001';
    end if;
    _ids := case when _partition_id is null then lockstep.next_partitions(_queue_id, _after, _partitions)
                 when _partition_id > _after then array[_partition_id] else '{}' end;
    _ids := array(select p.id from lockstep.partition p where p.id = any (_ids) order by p.id for no key update);
    if _limited then
        perform lockstep.place(_queue_id, null, _ids);  -- so that it can be counted
    end if;
    perform lockstep.lock_cursors(_ids);
    if _limited then
        insert into lockstep.depth as d (queue_id, group_id, slot, pending)
        select _queue_id, c.group_id, 1 + pg_backend_pid() % 16, -sum(lockstep.behind(c))
        from lockstep.cursor c join lockstep.consumer_group g on g.id = c.group_id
        where c.partition_id = any (_ids) group by c.group_id order by c.group_id
        on conflict (queue_id, group_id, slot) do update set pending = d.pending + excluded.pending;
    end if;
    update lockstep.cursor c
    set acked = t.last_seq, attempts = 0, lease_id = null, lease_to = null, leased_at = null, due_at = null
    from (select t.id, lockstep.last_seq(t.id) as last_seq from unnest(_ids) t (id) offset 0) t
    where c.partition_id = t.id and (c.acked, c.attempts, c.lease_id, c.due_at) is distinct from (t.last_seq, 0, null::uuid, null::timestamptz);
    delete from lockstep.delivery d where d.partition_id = any (_ids);
    return _ids[cardinality(_ids)];
end $$;

-- Which of some partitions are locked by others: those after a place, or those with messages in some segments. Locks
-- the remaining ones for the duration of the call.
create or replace function lockstep.held_after(_queue_id int, _after bigint, _partitions int) returns bigint[] language sql as $$
    select lockstep.held_partitions(lockstep.next_partitions(_queue_id, _after, _partitions))
$$;

create or replace function lockstep.held_in(_segment_ids bigint[]) returns bigint[] language sql as $$
    select lockstep.held_partitions(array(
        select distinct m.id from lockstep.segment s cross join lateral unnest(s.partition_ids) m (id) where s.id = any (_segment_ids)))
$$;

create or replace function lockstep.held_partitions(_partition_ids bigint[]) returns bigint[] language sql as $$
    with free as materialized (
        select p.id from lockstep.partition p where p.id = any (_partition_ids) order by p.id for no key update skip locked
    )
    select coalesce(array_agg(h.id order by h.id), '{}') from (
        select p.id from lockstep.partition p where p.id = any (_partition_ids) except select f.id from free f
    ) h
$$;

create or replace function lockstep.wait_for_partition(_partition_id bigint) returns void language sql as $$
    select 1 from lockstep.partition p where p.id = _partition_id for no key update
$$;

-- Locks the cursors and deliveries of locked partitions: acks that end whole leases hold no cursor.
create or replace function lockstep.lock_cursors(_partition_ids bigint[]) returns void language plpgsql as $$
begin
    perform 1 from lockstep.cursor c where c.partition_id = any (_partition_ids) order by c.partition_id, c.group_id for no key update;
    perform 1 from lockstep.delivery d where d.partition_id = any (_partition_ids)
    order by d.partition_id, d.group_id, d.from_seq for no key update;
end $$;

-- The next segments of a queue, or those with runs of one partition, after a place and not beyond _upto, until they
-- hold _messages. A place is a segment, or a seq of the partition; if _upto is null, the current end is used, which
-- _end returns. _next is how far this looked, null at the end. _with_ids are those that may have transaction ids or
-- trace ids.
create or replace function lockstep.clear_find(
    _queue_id int, _partition_id bigint, _after bigint, _upto bigint, _messages int,
    out _segment_ids bigint[], out _with_ids bigint[], out _next bigint, out _end bigint
) language plpgsql stable as $$
declare
    _found bigint := 0;
    _one record;
begin
    if _partition_id is null then
        _end := coalesce(_upto, (select s.id from lockstep.segment s where s.queue_id = _queue_id order by s.id desc limit 1));
        for _one in
            select s.id as place, s.id as segment_id, s.message_count as messages, s.partition_ids from lockstep.segment s
            where s.queue_id = _queue_id and s.id > _after and s.id <= _end order by s.id
        loop
            exit when _found >= _messages;
            _found := _found + _one.messages;
            _next := _one.place;
            _segment_ids := _segment_ids || _one.segment_id;
            _with_ids := _with_ids || case when lockstep.may_have_ids(_one.partition_ids) then _one.segment_id end;
        end loop;
    else
        _end := coalesce(_upto, lockstep.last_seq(_partition_id));
        for _one in
            select r.last_seq as place, r.segment_id, r.last_seq - r.first_seq + 1 as messages from lockstep.run r
            where r.partition_id = _partition_id and r.first_seq > _after and r.first_seq <= _end and r.segment_id is not null order by r.first_seq
        loop
            exit when _found >= _messages;
            _found := _found + _one.messages;
            _next := _one.place;
            _segment_ids := _segment_ids || _one.segment_id;
        end loop;
        if lockstep.may_have_ids(array[_partition_id]) then
            _with_ids := _segment_ids;
        end if;
    end if;
    _with_ids := array_remove(_with_ids, null);
    if _found < _messages then
        _next := null;
    end if;
end $$;

-- Removes the messages of the segments, or those of one partition in them; returns their number. With _unleased only
-- those not under a live lease. The ids in the segments are passed as for a prune (prune.sql).
create or replace function lockstep.clear(
    _queue_id int, _partition_id bigint, _unleased boolean, _segment_ids bigint[], _unread bigint[],
    _uuid_partitions bigint[], _uuids uuid[], _text_partitions bigint[], _texts text[],
    _trace_partitions bigint[], _trace_seqs bigint[], _traces uuid[], _at timestamptz
) returns bigint language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _queue lockstep.queue;
    _spared_at timestamptz := case when _unleased then _now end;
    _partition_ids bigint[];
    _from bigint[]; _to bigint[];
    _removed bigint;
begin
    select q.* into _queue from lockstep.queue q where q.id = _queue_id for share;
    if not found then
        raise exception 'the queue is gone' using errcode = 'LS001';
    end if;
    _partition_ids := array(
        select distinct m.id from lockstep.segment s cross join lateral unnest(s.partition_ids) m (id)
        where s.id = any (_segment_ids) and m.id = coalesce(_partition_id, m.id)
    );
    perform 1 from lockstep.partition p where p.id = any (_partition_ids) order by p.id for no key update;
    if _queue.max_size > 0 then
        perform lockstep.place(_queue_id, null, _partition_ids);
    end if;
    perform lockstep.lock_cursors(_partition_ids);
    select array_agg(c.partition_id), array_agg(c.first_seq), array_agg(c.last_seq), coalesce(sum(c.last_seq - c.first_seq + 1), 0)
    into _partition_ids, _from, _to, _removed
    from lockstep.clearable(_segment_ids, _partition_id, _spared_at) c;
    if _removed = 0 then
        return 0;
    end if;
    perform lockstep.count_removal(_queue, _partition_ids, _from, _to);
    if _unleased then
        perform lockstep.split_runs(_partition_ids, _to);
    end if;
    perform lockstep.remove_ranges(_partition_ids, _from, _to);
    perform lockstep.forget_ids(_uuid_partitions, _uuids, _text_partitions, _texts, _trace_partitions, _trace_seqs, _traces);
    perform lockstep.forget_unread(_unread, _partition_ids, _from, _to);
    perform lockstep.sweep_segments(_segment_ids);
    -- Most cursors are already at the end.
    _partition_ids := array(
        select t.id from (select distinct unnest(_partition_ids) as id) t cross join lateral (select lockstep.last_seq(t.id) as last_seq) l
        where exists (select 1 from lockstep.cursor c where c.partition_id = t.id and c.acked < l.last_seq)
           or exists (select 1 from lockstep.delivery d where d.partition_id = t.id)
    );
    perform lockstep.pass_removed(_partition_ids, _queue, _now, _spared_at);
    return _removed;
end $$;

-- The stored messages of the segments, or of one partition in them, except those under a lease that is live at
-- _spared_at: ranges, each within one run.
create or replace function lockstep.clearable(_segment_ids bigint[], _partition_id bigint, _spared_at timestamptz)
returns table (partition_id bigint, first_seq bigint, last_seq bigint) language sql stable as $$
    select r.partition_id, lower(c.seqs), upper(c.seqs) - 1
    from (select distinct unnest(_segment_ids) as id) t
    cross join lateral (select s.* from lockstep.segment s where s.id = t.id limit 1) s
    cross join lateral lockstep.runs_of(s.id, s.partition_ids, s.first_seqs, s.counts) r
    cross join lateral unnest(int8multirange(int8range(r.first_seq, r.last_seq, '[]'))
        - case when _spared_at is null then '{}' else lockstep.leased_seqs(r.partition_id, _spared_at) end) c (seqs)
    where r.partition_id = coalesce(_partition_id, r.partition_id)
$$;

-- The seqs of a partition under a lease of any group that is live at this time; none if that is null.
create or replace function lockstep.leased_seqs(_partition_id bigint, _now timestamptz) returns int8multirange language sql stable as $$
    select coalesce(range_agg(int8range(l.first_seq, l.last_seq, '[]')), '{}') from (
        -- First all cursors of the partition, then those with a lease: see lockstep.is_under_lease.
        select c.acked + 1 as first_seq, c.lease_to as last_seq
        from (select c.* from lockstep.cursor c where c.partition_id = _partition_id offset 0) c
        where c.lease_id is not null and c.due_at > _now and c.lease_to > c.acked and lockstep.is_group(c.group_id)
        union all
        select d.from_seq, d.to_seq from lockstep.delivery d join lockstep.consumer_group g on g.id = d.group_id
        where d.partition_id = _partition_id and d.lease_id is not null and d.due_at > _now
    ) l
$$;

-- Splits runs of locked partitions so that each of the seqs is the last of its run.
create or replace function lockstep.split_runs(_partition_ids bigint[], _seqs bigint[]) returns void language plpgsql as $$
begin
    insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
    select r.partition_id, t.seq + 1, r.last_seq, r.segment_id, (r.ordinal + t.seq + 1 - r.first_seq)::int
    from unnest(_partition_ids, _seqs) t (partition_id, seq)
    cross join lateral (
        select r.* from lockstep.run r where r.partition_id = t.partition_id and r.first_seq <= t.seq order by r.first_seq desc limit 1
    ) r
    where r.last_seq > t.seq;
    -- In a later statement, which sees those: a run that is split more than once ends where its next part begins.
    update lockstep.run r set last_seq = t.seq
    from unnest(_partition_ids, _seqs) t (partition_id, seq)
    cross join lateral (
        select b.first_seq from lockstep.run b where b.partition_id = t.partition_id and b.first_seq <= t.seq order by b.first_seq desc limit 1
    ) b
    where r.partition_id = t.partition_id and r.first_seq = b.first_seq and r.last_seq > t.seq;
end $$;

-- Removes the stored messages with seqs in [_from, _to] of a locked partition, with everything that refers to them;
-- returns their number. One removed run takes their place, merged with removed neighbours; at the start of the
-- partition none is needed, unless it is the last run, from which the next push numbers.
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

-- The part of remove that handles runs, for seqs of which some are stored.
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
    -- The ends of runs that extend beyond the range.
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

-- Removes what refers to removed messages.
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
