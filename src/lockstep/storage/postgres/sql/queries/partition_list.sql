-- A page of a queue's partitions by name, with their sums; those whose names begin with $6. The page is found first: the
-- sums cost some look-ups for each partition.
select p.id, p.name, p.created_at, lockstep.next_seq(p.id, 0) as first_stored, lockstep.last_seq(p.id) as last_seq,
       lockstep.lag(p.id, lockstep.start_of(p.id)) as stored, c.pending, c.processing, d.dead_letters,
       (select s.created_at from lockstep.next_run(p.id, 0) r join lockstep.segment s on s.id = r.segment_id) as oldest_at,
       (select s.created_at from lockstep.run r join lockstep.segment s on s.id = r.segment_id
        where r.partition_id = p.id order by r.first_seq desc limit 1) as newest_at
from (
    -- No name is longer than 255 characters, and no character is beyond U+10FFFF.
    select p.id, p.queue_id, p.name, p.created_at from lockstep.partition p
    where p.queue_id = $1 and p.name >= coalesce($2::text, '') and p.name <= coalesce($2, repeat(chr(1114111), 256))
      and p.name > coalesce($3::text, '')
      and p.name >= coalesce($6::text, '') and p.name < coalesce($6, '') || repeat(chr(1114111), 256)
    order by p.name limit $4
) p
cross join lateral (
    select max(lockstep.behind(c)) as pending, coalesce(sum(lockstep.held(c, coalesce($5::timestamptz, clock_timestamp()))), 0)::bigint as processing
    from lockstep.cursors_at(p.queue_id, p.id) c
) c
cross join lateral (select count(*) as dead_letters from lockstep.dead_letter d where d.partition_id = p.id) d
order by p.name
