-- Idle partitions: partitions that have been empty for long are removed, and created again by their next push.
--
-- Guarantees: a partition is removed only while no push to it is in progress, and if it has no stored message, no live
-- lease, no state of a stream query, and no push that waits as an operation. A push in flight finds its row gone and
-- resolves the name again.
-- Locks: the queue row, because resolving names relies on it, then partition rows, then cursor rows. Locked partitions
-- are skipped: a partition with a push in progress is not idle, and the next round checks again.
-- Indexes: run_removed finds empty partitions, so the cost depends on the removed runs and not on the partitions;
-- run_pkey, stream_state_partition.

-- Examines _runs removed runs after the partition _after. Newly found empty partitions are noted; those empty for
-- _idle_seconds are removed. The partition Default stays, because every configured queue has it. _next is null at the
-- end.
create or replace function lockstep.prune_partitions(
    _after bigint, _idle_seconds double precision, _runs int, _at timestamptz, out _removed int, out _next bigint
) language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _idle_since timestamptz := _now - make_interval(secs => _idle_seconds);
    _looked int;
    _first bigint;
    _queue record;
begin
    _removed := 0;
    select count(*), min(r.partition_id), max(r.partition_id) into _looked, _first, _next from (
        select r.partition_id from lockstep.run r where r.segment_id is null and r.partition_id > _after order by r.partition_id limit _runs
    ) r;
    if _looked = _runs and _next > _first then
        _next := _next - 1;  -- more runs of the last one may follow
    end if;
    for _queue in
        select q.id, q.name, array_agg(p.id) as partition_ids
        from lockstep.run r join lockstep.partition p on p.id = r.partition_id join lockstep.queue q on q.id = p.queue_id
        where r.segment_id is null and r.partition_id > _after and r.partition_id <= _next and p.name <> 'Default'
          and (r.empty_at is null or r.empty_at <= _idle_since)
          and not exists (select 1 from lockstep.run n where n.partition_id = r.partition_id and n.first_seq <> r.first_seq)
        group by q.id, q.name order by q.name
    loop
        _removed := _removed + lockstep.prune_idle(_queue.id, _queue.name, _queue.partition_ids, _idle_since, _now);
    end loop;
    if _looked < _runs then
        _next := null;
    end if;
end $$;

-- Among a queue's partitions, locks those that are free, checks them again, and notes or removes the empty ones.
create or replace function lockstep.prune_idle(_queue_id int, _queue text, _partition_ids bigint[], _idle_since timestamptz, _now timestamptz)
returns int language plpgsql as $$
begin
    perform 1 from lockstep.queue q where q.id = _queue_id for no key update skip locked;
    if not found then
        return 0;
    end if;
    _partition_ids := array(select p.id from lockstep.partition p where p.id = any (_partition_ids) order by p.id for update skip locked);
    update lockstep.run r set empty_at = _now from unnest(_partition_ids) t (id)
    where r.partition_id = t.id and r.segment_id is null and r.empty_at is null;
    _partition_ids := array(
        select t.id from unnest(_partition_ids) t (id)
        where exists (select 1 from lockstep.run r where r.partition_id = t.id and r.segment_id is null and r.empty_at <= _idle_since)
          and not exists (select 1 from lockstep.run r where r.partition_id = t.id and r.segment_id is not null)
          and not exists (select 1 from lockstep.cursors_at(_queue_id, t.id) c where lockstep.is_leased(c, _now))
          and not exists (select 1 from lockstep.stream_state s where s.partition_id = t.id)
          and not exists (select 1 from lockstep.operation_lane l where l.partition_id = t.id)
    );
    if _partition_ids = '{}' then
        return 0;
    end if;
    -- The next sample counts growth, and these seqs will be missing from its sums.
    update lockstep.sample_sum s set seqs = s.seqs - t.seqs
    from (
        select 0 as group_id, sum(lockstep.last_seq(t.id)) as seqs from unnest(_partition_ids) t (id)
        union all
        select c.group_id, sum(lockstep.passed(c))
        from unnest(_partition_ids) t (id) cross join lateral lockstep.cursors_at(_queue_id, t.id) c group by c.group_id
    ) t
    where s.queue_id = _queue_id and s.group_id = t.group_id;
    perform 1 from lockstep.figure f where f.queue_id = _queue_id order by f.group_id, f.walking for update;
    update lockstep.figure f set seqs = f.seqs - t.seqs, partitions = f.partitions - t.partitions
    from (
        select w.group_id, w.walking, sum(t.seqs) as seqs, count(*) as partitions
        from lockstep.figure w
        join (
            select 0 as group_id, p.id, lockstep.last_seq(p.id) as seqs from unnest(_partition_ids) p (id)
            union all
            select c.group_id, c.partition_id, lockstep.passed(c)
            from unnest(_partition_ids) t (id) cross join lateral lockstep.cursors_at(_queue_id, t.id) c
        ) t on t.group_id = w.group_id and t.id <= w.upto
        where w.queue_id = _queue_id group by w.group_id, w.walking
    ) t
    where f.queue_id = _queue_id and f.group_id = t.group_id and f.walking = t.walking;
    delete from lockstep.cursor c where c.partition_id = any (_partition_ids);
    delete from lockstep.delivery d where d.partition_id = any (_partition_ids);
    delete from lockstep.run r where r.partition_id = any (_partition_ids);
    delete from lockstep.partition p where p.id = any (_partition_ids);
    perform lockstep.note_removal(_queue, 'idle_partition', 0, cardinality(_partition_ids), _now);
    return cardinality(_partition_ids);
end $$;
