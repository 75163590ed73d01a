-- Locks the oldest of the dead letters that still match, except those whose copies are under a lease or, unless $9,
-- whose copies queue mode has completed; simultaneous redrives and purges take others. Dead letters are locked first,
-- and then what depends on them. (The filter is that of dead_letters_where, which cannot lock.)
with taken as materialized (
    select d.* from lockstep.dead_letter d
    where d.id = any ($1::bigint[])
      and ($2::text is null or d.queue_id = (select q.id from lockstep.queue q where q.name = $2))
      and ($3::text is null or (select p.name from lockstep.partition p where p.id = d.partition_id) = $3)
      and ($4::text is null or d.group_name = $4)
      and ($5::timestamptz is null or d.failed_at >= $5) and ($6::timestamptz is null or d.failed_at < $6)
      and (d.copy_seq is null or not lockstep.is_under_lease(d.copy_partition_id, d.copy_seq, coalesce($8::timestamptz, clock_timestamp())))
      and ($9 or not d.copy_done)
    order by d.id limit $7 for update skip locked
)
select d.id, d.group_name as "group", d.attempts, d.error, d.failed_at, q.name as queue, p.name as partition, d.partition_id, d.seq,
       r.segment_id, (r.ordinal + d.seq - r.first_seq)::int as ordinal, d.copy_partition_id, d.copy_seq
from taken d
join lockstep.queue q on q.id = d.queue_id
cross join lateral (select p.name from lockstep.partition p where p.id = d.partition_id limit 1) p
cross join lateral lockstep.runs_between(d.partition_id, d.seq - 1, d.seq) r
order by d.id
