-- A page of cursors of a queue with their exact lag, by partition id and group. Where nothing was removed, and for
-- ordered groups, the lag is a difference of seqs (as in figures.sql): functions that look it up take several times as
-- long.
select c.name as partition, c.id as partition_id, c."group", c.acked, c.last_seq, c.lag,
       (select s.created_at from lockstep.segment s where s.id = case when c.lag > 0 then case
           when not c.plain then (select r.segment_id from lockstep.head_run(c.c) r)
           else (select r.segment_id from lockstep.run r
                 where r.partition_id = c.id and r.first_seq <= greatest(c.acked + 1, c.first_seq) order by r.first_seq desc limit 1) end end
        limit 1) as oldest_at,
       case when c.plain then (c.c).due_at else lockstep.due_again(c.c) end as due_at,
       coalesce(d.attempts, (c.c).attempts) as attempts,
       case when c.plain then (c.c).lease_id is not null and (c.c).due_at > c.now else lockstep.is_leased(c.c, c.now) end is true as leased,
       (c.c).consumed_at, ((c.c).due_at = 'infinity' or coalesce(d.stopped, false)) is true as stopped,
       case when not c.plain then lockstep.held(c.c, c.now)
            when (c.c).lease_id is not null and (c.c).due_at > c.now then (c.c).lease_to - (c.c).acked else 0 end as in_flight,
       case when c.shared then lockstep.in_flight(c.id, c.group_id, false, c.now) - lockstep.in_flight(c.id, c.group_id, true, c.now)
            else 0 end as retrying
from (
    select p.id, p.name, g.id as group_id, g.name as "group", g.mode = 'shared' as shared, k.plain, t.now, c,
           case when k.plain then (c).acked else lockstep.done_upto(p.id, g.id, (c).acked) end as acked,
           coalesce(l.last_seq, 0) as last_seq, coalesce(f.first_seq, 1) as first_seq,
           case when k.plain then greatest(coalesce(l.last_seq, 0) - (c).acked, 0) else lockstep.behind(c) end as lag
    from (
        select p.id, p.name
        from unnest(case when $3::bigint is null then lockstep.next_partitions($1, $4, $5) else array[$3] end) t (id)
        cross join lateral (select p.id, p.name from lockstep.partition p where p.id = t.id and p.id > $4 limit 1) p
    ) p
    cross join (select coalesce($6::timestamptz, clock_timestamp()) as now) t
    left join lateral (select r.first_seq from lockstep.run r where r.partition_id = p.id order by r.first_seq limit 1) f on true
    left join lateral (select r.last_seq from lockstep.run r where r.partition_id = p.id order by r.first_seq desc limit 1) l on true
    cross join lateral (
        select exists (select 1 from lockstep.run r where r.partition_id = p.id and r.segment_id is null) as removed offset 0
    ) x
    join lockstep.consumer_group g on g.queue_id = $1 and ($2::int is null or g.id = $2)
    cross join lateral (
        select c from lockstep.cursor c where c.partition_id = p.id and c.group_id = g.id
        union all
        -- The substitute for a cursor that the group does not have yet.
        select c from lockstep.cursor_at(g, p.id) c
        where g.placed_upto is not null
          and not exists (select 1 from lockstep.cursor o where o.partition_id = p.id and o.group_id = g.id)
    ) c (c)
    cross join lateral (select not x.removed and g.mode = 'ordered' as plain offset 0) k
    order by p.id, g.name limit $5
) c
left join lateral (
    select d.attempts, bool_or(d.due_at = 'infinity') over () as stopped
    from lockstep.delivery d where c.shared and d.partition_id = c.id and d.group_id = c.group_id order by d.from_seq limit 1
) d on true
order by c.id, c."group"
