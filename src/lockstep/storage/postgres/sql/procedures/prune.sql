-- Prune: removes messages for retention and eviction, oldest first, in batches that are a transaction each.
--
-- Kinds: `retention` removes whole runs older than retention_seconds; `completed_retention` whole runs older than
-- completed_retention_seconds that every group is done with, and none without a group; `eviction` messages older than
-- max_wait_seconds that some group has not done. Messages under a live lease, and those behind them, stay. Retention
-- keeps messages that a Spark stream may still request; the removal of messages that such a stream has not read is
-- recorded for it.
--
-- Finding: lockstep.segment (queue_id, id) has a queue's segments in the order of their age, so a pass reads only those
-- that are old enough. Old segments that must stay (a group lags) are read once per round: the caller continues where
-- the previous call ended.
-- Locks: the queue row in share mode, so that its options do not change, for completed_retention the completion lock,
-- partition rows (by id), and, if removed messages may lie ahead of a cursor, cursor rows (by partition and group). A
-- partition that is locked for long is left for the next round.
-- Indexes: segment_queue, run_pkey, run_removed, cursor_pkey, dead_letter_message, dedup pkeys, trace_index_pkey,
-- trace_name_message, trace_event_message.

-- Messages created before this are too old; null if the queue does not use this kind of removal.
create or replace function lockstep.prune_before(_queue lockstep.queue, _kind text, _now timestamptz) returns timestamptz language sql immutable as $$
    select _now - make_interval(secs => nullif(case
        when _kind = 'eviction' then _queue.max_wait_seconds
        when not _queue.retention_enabled then 0
        when _kind = 'retention' then _queue.retention_seconds
        else _queue.completed_retention_seconds end, 0))
$$;

-- What may be removed of the segments, regardless of age: ranges of stored messages, each within one run.
create or replace function lockstep.prunable(_kind text, _segment_ids bigint[], _now timestamptz)
returns table (partition_id bigint, first_seq bigint, last_seq bigint) language sql stable as $$
    select r.partition_id, case when _kind = 'eviction' then greatest(r.first_seq, c.acked + 1) else r.first_seq end, r.last_seq
    from unnest(_segment_ids) t (id)
    cross join lateral (
        select s.* from lockstep.segment s
        where s.id = t.id and (_kind = 'eviction' or not lockstep.is_held(s.queue_id, s.txid, s.id)) limit 1
    ) s
    cross join lateral lockstep.runs_of(s.id, s.partition_ids, s.first_seqs, s.counts) r
    cross join lateral (
        select min(k.acked) as acked, min(k.acked) filter (where k.lease_id is not null and k.due_at > _now) as leased_after
        from lockstep.cursors_at(s.queue_id, r.partition_id) k
    ) k
    cross join lateral (
        select min(d.from_seq) - 1 as acked, min(d.from_seq) filter (where d.lease_id is not null and d.due_at > _now) - 1 as leased_after
        from lockstep.delivery d join lockstep.consumer_group g on g.id = d.group_id where d.partition_id = r.partition_id
    ) d
    cross join lateral (select least(k.acked, d.acked) as acked, least(k.leased_after, d.leased_after) as leased_after) c
    where r.last_seq <= coalesce(c.leased_after, r.last_seq)
      and case _kind when 'completed_retention' then r.last_seq <= c.acked
                     when 'eviction' then r.last_seq > coalesce(c.acked, 0)
                     else true end
$$;

-- The next segments from which something may be removed, of the first queue at or after the place (a queue's name and a
-- segment) that has any: until they hold _messages such messages, or _runs were examined. _next is how far this looked.
-- _queue is null at the end of the last queue. _with_ids are those that may have transaction ids or trace ids.
create or replace function lockstep.prune_find(
    _kind text, _after_queue text, _after_segment bigint, _messages int, _runs int, _at timestamptz,
    out _queue text, out _queue_id int, out _segment_ids bigint[], out _with_ids bigint[], out _next bigint
) language plpgsql stable as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _one lockstep.queue;
    _segment record;
    _looked int := 0;
    _found bigint := 0;
    _n bigint;
begin
    for _one in
        select q.* from lockstep.queue q
        where q.name >= _after_queue and lockstep.prune_before(q, _kind, _now) is not null order by q.name
    loop
        _queue := _one.name;
        _queue_id := _one.id;
        _next := case when _one.name = _after_queue then _after_segment else 0 end;
        for _segment in
            select s.id, s.created_at, s.partition_ids from lockstep.segment s where s.queue_id = _one.id and s.id > _next order by s.id
        loop
            exit when _segment.created_at >= lockstep.prune_before(_one, _kind, _now);
            _next := _segment.id;
            _n := (select sum(r.last_seq - r.first_seq + 1) from lockstep.prunable(_kind, array[_segment.id], _now) r);
            if _n > 0 then
                _segment_ids := _segment_ids || _segment.id;
                if lockstep.may_have_ids(_segment.partition_ids) then
                    _with_ids := _with_ids || _segment.id;
                end if;
            end if;
            _found := _found + coalesce(_n, 0);
            _looked := _looked + cardinality(_segment.partition_ids);
            if _found >= _messages or _looked >= _runs then
                return;
            end if;
        end loop;
        if _found > 0 then
            return;
        end if;
    end loop;
    _queue := null;
end $$;

-- Whether a segment of these partitions can have transaction ids or trace ids; if not, it need not be read to forget
-- them.
create or replace function lockstep.may_have_ids(_partition_ids bigint[]) returns boolean language sql stable as $$
    select exists (select 1 from lockstep.trace_index)
        or exists (
            select 1 from unnest(_partition_ids) t (id)
            where exists (select 1 from lockstep.dedup_uuid d where d.partition_id = t.id)
               or exists (select 1 from lockstep.dedup_text d where d.partition_id = t.id)
        )
$$;

-- Removes what may be removed of the segments; returns the number of messages. The caller passes the ids in them,
-- because this does not read packed bodies; _unread are segments that could not be read.
create or replace function lockstep.prune(
    _queue_id int, _kind text, _segment_ids bigint[], _unread bigint[],
    _uuid_partitions bigint[], _uuids uuid[], _text_partitions bigint[], _texts text[],
    _trace_partitions bigint[], _trace_seqs bigint[], _traces uuid[], _at timestamptz
) returns bigint language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _queue lockstep.queue;
    _partition_ids bigint[];
    _from bigint[]; _to bigint[];
    _removed bigint;
begin
    select q.* into _queue from lockstep.queue q where q.id = _queue_id for share;
    if _kind = 'completed_retention' then
        perform lockstep.completion_lock(_queue_id, true);
    end if;
    _segment_ids := array(
        select s.id from lockstep.segment s where s.id = any (_segment_ids) and s.created_at < lockstep.prune_before(_queue, _kind, _now)
    );
    _partition_ids := lockstep.lock_to_prune(array(select distinct r.partition_id from lockstep.prunable(_kind, _segment_ids, _now) r));
    if _queue.max_size > 0 then
        perform lockstep.place(_queue_id, null, _partition_ids);  -- so that it can be counted
    end if;
    if _kind <> 'completed_retention' then
        perform 1 from lockstep.cursor c where c.partition_id = any (_partition_ids) order by c.partition_id, c.group_id for no key update;
    end if;
    -- Of what may be removed now, the part that is locked; and still oldest first if a partition could not be locked in
    -- its turn.
    select array_agg(r.partition_id), array_agg(r.first_seq), array_agg(r.last_seq), coalesce(sum(r.last_seq - r.first_seq + 1), 0)
    into _partition_ids, _from, _to, _removed
    from (
        select r.*, min(r.first_seq) over lane as oldest, bool_or(r.first_seq is null) over lane as locked
        from (
            select r.* from lockstep.prunable(_kind, _segment_ids, _now) r
            union all select t.id, null, null from unnest(_partition_ids) t (id)
        ) r
        window lane as (partition by r.partition_id)
    ) r
    where r.locked and r.first_seq is not null and coalesce((
        select o.last_seq from lockstep.run o
        where o.partition_id = r.partition_id and o.first_seq < r.oldest and o.last_seq < r.oldest and o.segment_id is not null
        order by o.first_seq desc limit 1
    ), 0) <= case when _kind = 'eviction' then coalesce((
        select min(lockstep.done_upto(c.partition_id, c.group_id, c.acked)) from lockstep.cursors_at(_queue_id, r.partition_id) c), 0) else 0 end;
    if _removed = 0 then
        return 0;
    end if;
    perform lockstep.count_removal(_queue, _partition_ids, _from, _to);
    perform lockstep.note_done_copies(_partition_ids, _from, _to);
    perform lockstep.remove_ranges(_partition_ids, _from, _to);
    perform lockstep.forget_ids(_uuid_partitions, _uuids, _text_partitions, _texts, _trace_partitions, _trace_seqs, _traces);
    perform lockstep.forget_unread(_unread, _partition_ids, _from, _to);
    perform lockstep.sweep_segments(_segment_ids);
    if _kind <> 'completed_retention' then
        perform lockstep.pass_removed(_partition_ids, _queue, _now, _now);
    end if;
    perform lockstep.note_removal(_queue.name, _kind, _removed, 0, _now);
    return _removed;
end $$;

-- Locks partitions in the order of their ids; returns those that it got. A client's transaction may hold one for long:
-- such a partition is left out, along with others that are locked at that moment.
create or replace function lockstep.lock_to_prune(_partition_ids bigint[]) returns bigint[] language plpgsql as $$
declare
    _patience text := current_setting('lock_timeout');
begin
    begin
        perform set_config('lock_timeout', '1s', true);
        perform 1 from lockstep.partition p where p.id = any (_partition_ids) order by p.id for no key update;
        perform set_config('lock_timeout', _patience, true);
        return _partition_ids;
    exception when lock_not_available then
        -- The setting has been rolled back, with everything else in the block.
        return array(select p.id from lockstep.partition p where p.id = any (_partition_ids) order by p.id for no key update skip locked);
    end;
end $$;

-- Counts what is about to be removed: in the depth of a queue with a max_size, and as unread by Spark streams.
create or replace function lockstep.count_removal(_queue lockstep.queue, _partition_ids bigint[], _from bigint[], _to bigint[])
returns void language plpgsql as $$
begin
    if _queue.max_size > 0 then
        perform lockstep.count_pruned(_queue.id, _partition_ids, _from, _to);
    end if;
    perform lockstep.note_unread(_queue.id, _partition_ids, _from, _to);
end $$;

-- Counts ranges to be removed from a queue with a max_size: for the store, and for each group that has not done them.
create or replace function lockstep.count_pruned(_queue_id int, _partition_ids bigint[], _from bigint[], _to bigint[]) returns void language sql as $$
    insert into lockstep.depth as d (queue_id, group_id, slot, pending)
    select _queue_id, t.group_id, 1 + pg_backend_pid() % 16, -sum(t.n)
    from (
        select 0 as group_id, r.last_seq - r.first_seq + 1 as n from unnest(_from, _to) r (first_seq, last_seq)
        union all
        select c.group_id, r.last_seq - greatest(r.first_seq, c.acked + 1) + 1
        from unnest(_partition_ids, _from, _to) r (partition_id, first_seq, last_seq)
        join lockstep.cursor c on c.partition_id = r.partition_id and c.acked < r.last_seq
        join lockstep.consumer_group g on g.id = c.group_id
        union all
        select d.group_id, least(r.last_seq, d.to_seq) - greatest(r.first_seq, d.from_seq) + 1
        from unnest(_partition_ids, _from, _to) r (partition_id, first_seq, last_seq)
        join lockstep.delivery d on d.partition_id = r.partition_id and d.from_seq <= r.last_seq and d.to_seq >= r.first_seq
        join lockstep.consumer_group g on g.id = d.group_id
    ) t
    group by t.group_id
    order by t.group_id
    on conflict (queue_id, group_id, slot) do update set pending = d.pending + excluded.pending
$$;

-- Removes ranges of stored messages of locked partitions, each within one run and up to its end. The runs that hold
-- their place are merged with removed neighbours, and dropped at the start of a partition, unless it is the last run
-- (see lockstep.remove).
create or replace function lockstep.remove_ranges(_partition_ids bigint[], _from bigint[], _to bigint[]) returns void language plpgsql as $$
declare
    _places bigint[];
    _firsts bigint[];
    _lasts bigint[];
begin
    -- Before the others are deleted: looking backwards for a run would scan everything that this transaction has
    -- deleted.
    update lockstep.run r set last_seq = t.first_seq - 1
    from unnest(_partition_ids, _from) t (partition_id, first_seq)
    cross join lateral (
        select b.first_seq from lockstep.run b where b.partition_id = t.partition_id and b.first_seq < t.first_seq
        order by b.first_seq desc limit 1
    ) b
    where r.partition_id = t.partition_id and r.first_seq = b.first_seq and r.last_seq >= t.first_seq;
    delete from lockstep.run r using unnest(_partition_ids, _from) t (partition_id, first_seq)
    where r.partition_id = t.partition_id and r.first_seq = t.first_seq;
    with gone as (
        -- By ctid: the plan of a join may start with all removed runs of all queues.
        delete from lockstep.run r where r.ctid = any (array(
            select g.place from (select distinct unnest(_partition_ids) as id) t
            cross join lateral (select g.ctid as place from lockstep.run g where g.partition_id = t.id and g.segment_id is null offset 0) g))
        returning r.partition_id, r.first_seq, r.last_seq
    ), piece as (
        select * from gone
        union all select * from unnest(_partition_ids, _from, _to)
    ), island as (
        -- Pieces that touch have the same difference between their position and the length of all before them.
        select p.*, p.last_seq - sum(p.last_seq - p.first_seq + 1) over (partition by p.partition_id order by p.first_seq) as island
        from piece p
    ), joined as (
        select i.partition_id, min(i.first_seq) as first_seq, max(i.last_seq) as last_seq from island i group by i.partition_id, i.island
    )
    select array_agg(j.partition_id), array_agg(j.first_seq), array_agg(j.last_seq) into _places, _firsts, _lasts from joined j;
    insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
    select t.partition_id, t.first_seq, t.last_seq, null, 0 from unnest(_places, _firsts, _lasts) t (partition_id, first_seq, last_seq)
    where not exists (select 1 from lockstep.run r where r.partition_id = t.partition_id and r.first_seq > t.last_seq)
       or exists (select 1 from lockstep.run r where r.partition_id = t.partition_id and r.first_seq < t.first_seq);
    delete from lockstep.dead_letter d using unnest(_partition_ids, _from, _to) t (partition_id, first_seq, last_seq)
    where d.partition_id = t.partition_id and d.seq between t.first_seq and t.last_seq;
    delete from lockstep.trace_name n using unnest(_partition_ids, _from, _to) t (partition_id, first_seq, last_seq)
    where n.partition_id = t.partition_id and n.seq between t.first_seq and t.last_seq;
    delete from lockstep.trace_event e using unnest(_partition_ids, _from, _to) t (partition_id, first_seq, last_seq)
    where e.partition_id = t.partition_id and e.seq between t.first_seq and t.last_seq;
end $$;

-- Removes the transaction ids and trace ids of messages that are no longer stored.
create or replace function lockstep.forget_ids(
    _uuid_partitions bigint[], _uuids uuid[], _text_partitions bigint[], _texts text[],
    _trace_partitions bigint[], _trace_seqs bigint[], _traces uuid[]
) returns void language plpgsql as $$
begin
    delete from lockstep.dedup_uuid d using unnest(_uuid_partitions, _uuids) t (partition_id, id)
    where d.partition_id = t.partition_id and d.transaction_id = t.id
      and not exists (select 1 from lockstep.runs_between(d.partition_id, d.seq - 1, d.seq) r);
    delete from lockstep.dedup_text d using unnest(_text_partitions, _texts) t (partition_id, id)
    where d.partition_id = t.partition_id and d.transaction_id = t.id
      and not exists (select 1 from lockstep.runs_between(d.partition_id, d.seq - 1, d.seq) r);
    delete from lockstep.trace_index d using unnest(_trace_partitions, _trace_seqs, _traces) t (partition_id, seq, id)
    where d.trace_id = t.id and d.partition_id = t.partition_id and d.seq = t.seq
      and not exists (select 1 from lockstep.runs_between(d.partition_id, d.seq - 1, d.seq) r);
end $$;

-- Removes what refers to removed ranges of segments that could not be read, whose ids are unknown.
create or replace function lockstep.forget_unread(_unread bigint[], _partition_ids bigint[], _from bigint[], _to bigint[]) returns void language sql as $$
    select lockstep.forget(r.partition_id, r.first_seq, r.last_seq)
    from unnest(_partition_ids, _from, _to) r (partition_id, first_seq, last_seq)
    where exists (
        select 1 from lockstep.segment s cross join lateral unnest(s.partition_ids, s.first_seqs, s.counts) m (partition_id, first_seq, n)
        where s.id = any (_unread) and m.partition_id = r.partition_id and r.first_seq between m.first_seq and m.first_seq + m.n - 1
    )
$$;

-- Moves the cursors of locked partitions past removed messages. A cursor whose head was removed starts anew with what
-- is left; it keeps a lease that is live at _spared_at, and loses any if that is null.
create or replace function lockstep.pass_removed(_partition_ids bigint[], _queue lockstep.queue, _now timestamptz, _spared_at timestamptz) returns void language sql as $$
    select lockstep.shared_pass_removed(_partition_ids, _spared_at);
    update lockstep.cursor c
    set acked = t.acked, attempts = 0, lease_id = null, lease_to = null, leased_at = null,
        due_at = lockstep.due_at(c.partition_id, t.acked, _queue.delay_seconds, _queue.window_seconds, _now)
    from (
        select c.partition_id, c.group_id, coalesce(lockstep.next_seq(c.partition_id, c.acked) - 1, lockstep.last_seq(c.partition_id)) as acked
        from (select distinct unnest(_partition_ids) as id) p join lockstep.cursor c on c.partition_id = p.id
        offset 0  -- computed once
    ) t
    where c.partition_id = t.partition_id and c.group_id = t.group_id and t.acked > c.acked
      and not coalesce(c.lease_id is not null and c.due_at > _spared_at, false)
$$;

-- The history: one row per minute, queue and kind.
create or replace function lockstep.note_removal(_queue text, _kind text, _messages bigint, _partitions bigint, _now timestamptz) returns void language sql as $$
    insert into lockstep.removal as r (at, queue, kind, messages, partitions)
    values (date_trunc('minute', _now), _queue, _kind, _messages, _partitions)
    on conflict (at, queue, kind) do update
    set messages = r.messages + excluded.messages, partitions = r.partitions + excluded.partitions
$$;
