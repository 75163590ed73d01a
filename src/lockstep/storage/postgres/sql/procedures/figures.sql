-- The fill level of queues, and the progress of their groups.
--
-- Counting costs some microseconds for each partition and each of its cursors. A list counts only where that is cheap.
-- For other queues it takes the figures of the last walk, which samples make in slices (sample.sql), and says when that
-- walk began. A list therefore costs the same at a thousand partitions and at a million. Read-only, without locks.
-- Indexes: partition_queue, run_pkey, run_removed, cursor_pkey, delivery_pkey.

-- Counts over the partitions of a queue after _after up to _upto. One row per group, and one row with group 0 for the
-- queue.
create or replace function lockstep.look(_queue_id int, _after bigint, _upto bigint, _now timestamptz) returns table (
    group_id int, partitions bigint, stored bigint, seqs bigint, base bigint, lag bigint, with_lag bigint, in_flight bigint,
    leased bigint, busy bigint, ready bigint, waiting bigint, stopped bigint, oldest_at timestamptz,
    created_each double precision[], lag_each double precision[]
) language sql stable as $$
    with lane as materialized (
        select p.id, coalesce(l.last_seq, 0) as last_seq, x.removed,
               case when x.removed then lockstep.start_of(p.id) else coalesce(f.first_seq - 1, 0) end as start_seq,
               case when x.removed then lockstep.lag(p.id, lockstep.start_of(p.id)) else coalesce(l.last_seq - f.first_seq + 1, 0) end as stored
        from lockstep.partitions_between(_queue_id, _after, _upto) p (id)
        left join lateral (select r.last_seq from lockstep.run r where r.partition_id = p.id order by r.first_seq desc limit 1) l on true
        left join lateral (select r.first_seq from lockstep.run r where r.partition_id = p.id order by r.first_seq limit 1) f on true
        cross join lateral (
            select exists (select 1 from lockstep.run r where r.partition_id = p.id and r.segment_id is null) as removed offset 0
        ) x
    ), place as materialized (
        -- Where nothing was removed, all counts are differences of seqs. Otherwise, and for shared groups, they are
        -- looked up.
        select g.id as group_id, l.start_seq, k.plain, c,
               case when k.plain then greatest(l.last_seq - (c).acked, 0) else lockstep.behind(c) end as lag,
               case when not k.plain then lockstep.held(c, _now) when (c).lease_id is not null and (c).due_at > _now then (c).lease_to - (c).acked else 0 end as in_flight,
               case when k.plain then (c).lease_id is not null and (c).due_at > _now else lockstep.is_leased(c, _now) end as leased,
               case when k.plain then (c).due_at else lockstep.due_again(c) end as due_at,
               case when g.mode = 'ordered' then (c).acked else lockstep.passed(c) end as passed
        from lane l
        -- The existing cursors, and substitutes for those that a group does not have yet.
        cross join lateral (
            select c as c, c.group_id from lockstep.cursor c where c.partition_id = l.id
            union all
            select c, c.group_id from lockstep.consumer_group g cross join lateral lockstep.cursor_at(g, l.id) c
            where g.queue_id = _queue_id and g.placed_upto is not null
              and not exists (select 1 from lockstep.cursor o where o.partition_id = l.id and o.group_id = g.id)
        ) t (c, group_id)
        cross join lateral (select g.* from lockstep.consumer_group g where g.id = t.group_id limit 1) g
        cross join lateral (select not l.removed and g.mode = 'ordered' as plain offset 0) k
        where g.queue_id = _queue_id
    ), dated as materialized (
        select p.*, extract(epoch from s.created_at)::double precision as created
        from place p
        left join lateral (
            select r.segment_id from (
                (select r.segment_id, r.first_seq from lockstep.run r
                 where p.plain and r.partition_id = (p.c).partition_id and r.first_seq <= greatest((p.c).acked, p.start_seq) + 1
                 order by r.first_seq desc limit 1)
                union all
                (select r.segment_id, r.first_seq from lockstep.head_run(p.c) r where not p.plain)
            ) r limit 1
        ) r on p.lag > 0
        left join lateral (select s.created_at from lockstep.segment s where s.id = r.segment_id limit 1) s on true
    ), counted as materialized (
        -- Reads each cursor once: a join would compare it with every group. Groups without a cursor have a row of
        -- nulls.
        select d.group_id, count(d.lag) as partitions, coalesce(sum(d.passed), 0)::bigint as passed,
               coalesce(sum(least(d.start_seq, d.passed)), 0)::bigint as passed_stored,
               coalesce(sum(d.lag), 0)::bigint as lag, count(*) filter (where d.lag > 0) as with_lag,
               coalesce(sum(d.in_flight), 0)::bigint as in_flight,
               count(*) filter (where d.leased) as leased, count(*) filter (where d.leased and d.due_at > _now) as busy,
               count(*) filter (where d.due_at <= _now) as ready,
               count(*) filter (where not (d.leased and d.due_at > _now) and d.due_at > _now and d.due_at <> 'infinity') as waiting,
               count(*) filter (where not (d.leased and d.due_at > _now) and d.due_at = 'infinity') as stopped,
               to_timestamp(min(d.created)) as oldest_at, array_agg(d.created) filter (where d.lag > 0) as created_each,
               array_agg(d.lag::double precision) filter (where d.lag > 0) as lag_each
        from (
            select d.group_id, d.start_seq, d.passed, d.lag, d.in_flight, d.leased, d.due_at, d.created from dated d
            union all
            select g.id, null, null, null, null, null, null, null from lockstep.consumer_group g where g.queue_id = _queue_id
        ) d
        group by d.group_id
    )
    select 0, count(*), coalesce(sum(l.stored), 0)::bigint, coalesce(sum(l.last_seq), 0)::bigint, 0::bigint, coalesce(sum(l.stored), 0)::bigint,
           count(*) filter (where l.stored > 0), 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint,
           -- Without groups, all stored messages are pending.
           (select s.created_at from lockstep.segment s where s.queue_id = _queue_id order by s.id limit 1), null, null
    from lane l
    union all
    select t.group_id, t.partitions, 0, t.passed,
           -- The starting position of a group is not stored. A group that reads everything began with the first stored
           -- message.
           case when coalesce(u.mode, 'all') = 'all' then t.passed_stored else t.passed end,
           t.lag, t.with_lag, t.in_flight, t.leased, t.busy, t.ready, t.waiting, t.stopped, t.oldest_at, t.created_each, t.lag_each
    from counted t
    cross join lateral (select g.* from lockstep.consumer_group g where g.id = t.group_id limit 1) g
    left join lateral (
        select s.mode from lockstep.subscription s where s.queue_id = _queue_id and s.group_name = g.name limit 1
    ) u on true
$$;

-- Which of the queues to count: the smallest first, as long as together they have at most _units cursors and
-- partitions. The size of a queue follows from the last walk and the partitions created since.
create or replace function lockstep.to_look_into(_queue_ids int[], _units bigint) returns int[] language sql stable as $$
    select coalesce(array_agg(t.id), '{}') from (
        select s.id, sum(s.units) over (order by s.units, s.id) as total
        from (
            select q.id,
                   case when f.partitions * g.factor > _units then f.partitions * g.factor else (coalesce(f.partitions, 0) +
                       cardinality(lockstep.next_partitions(q.id, coalesce(f.upto, 0), _units::int + 1))) * g.factor end as units
            from unnest(_queue_ids) q (id)
            left join lateral (
                select f.* from lockstep.figure f where f.queue_id = q.id and f.group_id = 0 and not f.walking limit 1
            ) f on true
            cross join lateral (select 1 + count(*) as factor from lockstep.consumer_group g where g.queue_id = q.id) g
        ) s
    ) t
    where t.total <= _units
$$;

-- The figures of queues and their groups, as lockstep.look counts them. figures_at says when, and is null for figures
-- counted now. With _exact, all figures are counted now. A stored median counts for weights[i] cursors. Unknown figures
-- are null: all of a queue until its first walk ends, and most of a group until a walk has reached it.
create or replace function lockstep.figures(_queue_ids int[], _exact boolean, _units bigint, _at timestamptz) returns table (
    queue_id int, group_id int, figures_at timestamptz, partitions bigint, stored bigint, lag bigint, with_lag bigint, in_flight bigint,
    leased bigint, busy bigint, ready bigint, waiting bigint, stopped bigint, dead_letters bigint, oldest_at timestamptz, newest_at timestamptz,
    created_sum double precision, lag_min double precision, lag_max double precision,
    created_each double precision[], lag_each double precision[], weights bigint[]
) language plpgsql stable as $$
#variable_conflict use_column
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _looked int[] := case when _exact then _queue_ids else lockstep.to_look_into(_queue_ids, _units) end;
begin
    return query
    select q.id, l.group_id, null::timestamptz, l.partitions, l.stored, l.lag, l.with_lag, l.in_flight, l.leased, l.busy, l.ready, l.waiting,
           l.stopped, case when l.group_id = 0 then (select count(*) from lockstep.dead_letter d where d.queue_id = q.id) else 0 end,
           l.oldest_at, (select to_timestamp(max(e)) from unnest(l.created_each) e), (select sum(e) from unnest(l.created_each) e),
           (select min(e) from unnest(l.lag_each) e), (select max(e) from unnest(l.lag_each) e), l.created_each, l.lag_each,
           array_fill(1::bigint, array[coalesce(cardinality(l.lag_each), 0)])
    from unnest(_looked) q (id)
    cross join lateral lockstep.look(q.id, 0, 9223372036854775807, _now) l;
    if cardinality(_looked) = cardinality(_queue_ids) then
        return;
    end if;
    return query
    select q.id, 0, w.at, w.partitions, w.stored, w.lag, w.with_lag, w.in_flight, w.leased, w.busy, w.ready, w.waiting, w.stopped,
           w.dead_letters, w.oldest_at, null::timestamptz, null::double precision, null::double precision, null::double precision,
           null::double precision[], null::double precision[], null::bigint[]
    from unnest(_queue_ids) q (id)
    left join lateral (
        select f.* from lockstep.figure f where f.queue_id = q.id and f.group_id = 0 and not f.walking limit 1
    ) w on true
    where q.id <> all (_looked)
    union all
    -- A group that began or was moved after the walk counts as behind by everything stored at that time, unless it
    -- began at the end.
    select q.id, g.id, w.at, f.partitions, 0::bigint, coalesce(f.lag, n.lag), f.with_lag, f.in_flight, f.leased, f.busy, f.ready,
           f.waiting, f.stopped, 0::bigint, case when f.group_id is not null then f.oldest_at when n.lag > 0 then w.oldest_at end,
           f.newest_at, f.created_sum, f.lag_min::double precision, f.lag_max::double precision, f.created_medians, f.lag_medians,
           f.weights
    from unnest(_queue_ids) q (id)
    left join lateral (
        select f.* from lockstep.figure f where f.queue_id = q.id and f.group_id = 0 and not f.walking limit 1
    ) w on true
    join lockstep.consumer_group g on g.queue_id = q.id
    left join lateral (
        select f.* from lockstep.figure f where f.queue_id = q.id and f.group_id = g.id and not f.walking limit 1
    ) f on true
    cross join lateral (select case when w.at is not null and g.begins = 'end' then 0 else w.stored end as lag) n
    where q.id <> all (_looked);
end $$;

-- The same, one row per queue. Pending is the lag of the group that is furthest behind or, without groups, all stored
-- messages. A sum with an unknown part is null.
create or replace function lockstep.queue_figures(_queue_ids int[], _exact boolean, _units bigint, _at timestamptz) returns table (
    queue_id int, figures_at timestamptz, partitions bigint, stored bigint, pending bigint, processing bigint, dead_letters bigint,
    oldest_at timestamptz
) language sql stable as $$
    select f.queue_id, max(f.figures_at), max(f.partitions) filter (where f.group_id = 0), max(f.stored) filter (where f.group_id = 0),
           coalesce(max(f.lag) filter (where f.group_id <> 0), max(f.stored) filter (where f.group_id = 0)),
           case when count(f.in_flight) = count(*) then sum(f.in_flight)::bigint end, max(f.dead_letters) filter (where f.group_id = 0),
           case when count(*) > 1 then min(f.oldest_at) filter (where f.group_id <> 0) else min(f.oldest_at) end
    from lockstep.figures(_queue_ids, _exact, _units, _at) f
    group by f.queue_id
$$;
