-- A page of cursors of a queue with their exact lag, by partition id and group.
select p.name, p.id, g.name, lockstep.done_upto(c.partition_id, c.group_id, c.acked), lockstep.last_seq(p.id), lockstep.behind(c),
       (select s.created_at from lockstep.head_run(c) r cross join lateral (
           select s.created_at from lockstep.segment s where s.id = r.segment_id limit 1) s) as oldest_at,
       lockstep.due_again(c), coalesce((
           select d.attempts from lockstep.delivery d where d.partition_id = p.id and d.group_id = g.id order by d.from_seq limit 1), c.attempts),
       lockstep.is_leased(c, t.now), c.consumed_at,
       c.due_at = 'infinity' or exists (
           select 1 from lockstep.delivery d where d.partition_id = p.id and d.group_id = g.id and d.due_at = 'infinity'),
       lockstep.held(c, t.now), lockstep.in_flight(p.id, g.id, false, t.now) - lockstep.in_flight(p.id, g.id, true, t.now)
from (
    select p.id, p.name
    from unnest(case when $3::bigint is null then lockstep.next_partitions($1, $4, $5) else array[$3] end) t (id)
    cross join lateral (select p.id, p.name from lockstep.partition p where p.id = t.id and p.id > $4 limit 1) p
) p
join lockstep.consumer_group g on g.queue_id = $1 and ($2::int is null or g.id = $2)
cross join lateral lockstep.cursor_at(g, p.id) c
cross join (select coalesce($6::timestamptz, clock_timestamp()) as now) t
order by p.id, g.name limit $5
