-- The messages in the partitions of a queue. The cost grows with the runs that are not done, and with the scheduled
-- messages.
with asked as (
    select coalesce($4::timestamptz, clock_timestamp()) as now
), waiting as (
    select s.partition_name as name, count(*) as scheduled from lockstep.scheduled s where s.queue_id = $1 group by s.partition_name
), named as (
    select p.name from lockstep.partition p where p.queue_id = $1 union select w.name from waiting w
)
select n.name as partition, coalesce(u.total, 0) as total, coalesce(l.leased, 0) as leased, coalesce(w.scheduled, 0) as scheduled,
       u.age as age_seconds_average, l.age as lease_age_seconds_average, u.oldest_at
from named n
cross join asked a
left join waiting w on w.name = n.name
left join lockstep.partition p on p.queue_id = $1 and p.name = n.name
left join lateral (
    select coalesce(min(least(c.acked, d.acked)), 0) as acked
    from lockstep.cursors_at(p.queue_id, p.id) c
    left join lateral (
        select d.from_seq - 1 as acked from lockstep.delivery d where d.partition_id = c.partition_id and d.group_id = c.group_id
        order by d.from_seq limit 1
    ) d on true
) c on true
left join lateral (
    select sum(r.n)::bigint as total, min(s.created_at) as oldest_at,
           (sum(r.n * extract(epoch from a.now - s.created_at)) / nullif(sum(r.n), 0))::double precision as age
    from (
        select r.segment_id, r.last_seq - greatest(r.first_seq, c.acked + 1) + 1 as n
        from lockstep.runs_between(p.id, c.acked, lockstep.last_seq(p.id)) r
    ) r
    join lockstep.segment s on s.id = r.segment_id
) u on true
left join lateral (
    select sum(h.n)::bigint as leased, (sum(h.n * extract(epoch from a.now - h.leased_at)) / nullif(sum(h.n), 0))::double precision as age
    from (
        select lockstep.stored_between(c.partition_id, c.acked, c.lease_to) as n, c.leased_at
        from (select c.* from lockstep.cursor c where c.partition_id = p.id offset 0) c
        where c.lease_id is not null and c.due_at > a.now and lockstep.is_group(c.group_id)
        union all
        select lockstep.stored_between(d.partition_id, d.from_seq - 1, d.to_seq), d.leased_at
        from lockstep.delivery d join lockstep.consumer_group g on g.id = d.group_id
        where d.partition_id = p.id and d.lease_id is not null and d.due_at > a.now
    ) h
) l on true
where $2::text is null or n.name > $2
order by n.name limit $3
