-- A page of a queue's partitions by name, with their sums; those whose names begin with $6. The page is found first,
-- because the sums cost some look-ups for each partition. Where nothing was removed, and for ordered groups, they are
-- differences of seqs (as in figures.sql): functions that look them up take five times as long.
select p.id, p.name, p.created_at, t.first_seq, coalesce(l.last_seq, 0) as last_seq, t.messages, coalesce(c.pending, t.messages) as pending,
       coalesce(c.processing, 0)::bigint as processing, d.dead_letters,
       (select s.created_at from lockstep.segment s where s.id = t.first_segment limit 1) as oldest_at,
       (select s.created_at from lockstep.segment s where s.id = t.last_segment limit 1) as newest_at
from (
    -- No name is longer than 255 characters, and no character is beyond U+10FFFF.
    select p.id, p.queue_id, p.name, p.created_at from lockstep.partition p
    where p.queue_id = $1 and p.name >= coalesce($2::text, '') and p.name <= coalesce($2, repeat(chr(1114111), 256))
      and p.name > coalesce($3::text, '')
      and p.name >= coalesce($6::text, '') and p.name < coalesce($6, '') || repeat(chr(1114111), 256)
    order by p.name limit $4
) p
cross join (select coalesce($5::timestamptz, clock_timestamp()) as now) a
left join lateral (
    select r.first_seq, r.segment_id from lockstep.run r where r.partition_id = p.id order by r.first_seq limit 1
) f on true
left join lateral (
    select r.last_seq, r.segment_id from lockstep.run r where r.partition_id = p.id order by r.first_seq desc limit 1
) l on true
cross join lateral (
    select exists (select 1 from lockstep.run r where r.partition_id = p.id and r.segment_id is null) as removed offset 0
) x
cross join lateral (
    select coalesce(case when x.removed then lockstep.next_seq(p.id, 0) else f.first_seq end, coalesce(l.last_seq, 0) + 1) as first_seq,
           case when x.removed then (select r.segment_id from lockstep.next_run(p.id, 0) r) else f.segment_id end as first_segment,
           coalesce(l.segment_id, (select r.segment_id from lockstep.run r
                                   where r.partition_id = p.id and r.segment_id is not null and x.removed
                                   order by r.first_seq desc limit 1)) as last_segment,
           case when x.removed then lockstep.lag(p.id, lockstep.start_of(p.id)) else coalesce(l.last_seq - f.first_seq + 1, 0) end as messages
) t
cross join lateral (
    select max(case when k.plain then greatest(coalesce(l.last_seq, 0) - (c.c).acked, 0) else lockstep.behind(c.c) end) as pending,
           sum(case when not k.plain then lockstep.held(c.c, a.now)
                    when (c.c).lease_id is not null and (c.c).due_at > a.now then (c.c).lease_to - (c.c).acked else 0 end) as processing
    from (
        select c, c.group_id from lockstep.cursor c where c.partition_id = p.id
        union all
        -- Substitutes for the cursors that a group does not have yet.
        select c, c.group_id from lockstep.consumer_group g cross join lateral lockstep.cursor_at(g, p.id) c
        where g.queue_id = $1 and g.placed_upto is not null
          and not exists (select 1 from lockstep.cursor o where o.partition_id = p.id and o.group_id = g.id)
    ) c (c, group_id)
    cross join lateral (
        select not x.removed and g.mode = 'ordered' as plain from lockstep.consumer_group g where g.id = c.group_id and g.queue_id = $1 limit 1
    ) k
) c
cross join lateral (select count(*) as dead_letters from lockstep.dead_letter d where d.partition_id = p.id) d
order by p.name
