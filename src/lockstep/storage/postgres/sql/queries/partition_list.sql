-- Partitions of a queue with their sums.
select p.id, p.name, p.created_at, lockstep.next_seq(p.id, 0) as first_stored, lockstep.last_seq(p.id) as last_seq,
       lockstep.lag(p.id, lockstep.start_of(p.id)) as stored, c.pending, c.processing, d.dead_letters,
       (select s.created_at from lockstep.next_run(p.id, 0) r join lockstep.segment s on s.id = r.segment_id) as oldest_at,
       (select s.created_at from lockstep.run r join lockstep.segment s on s.id = r.segment_id
        where r.partition_id = p.id order by r.first_seq desc limit 1) as newest_at
from lockstep.partition p
cross join lateral (
    select max(lockstep.behind(c)) as pending, coalesce(sum(lockstep.held(c, coalesce($5::timestamptz, clock_timestamp()))), 0)::bigint as processing
    from lockstep.cursors_at(p.queue_id, p.id) c
) c
cross join lateral (select count(*) as dead_letters from lockstep.dead_letter d where d.partition_id = p.id) d
where p.queue_id = $1 and ($2::text is null or p.name = $2) and ($3::text is null or p.name > $3)
order by p.name limit $4
