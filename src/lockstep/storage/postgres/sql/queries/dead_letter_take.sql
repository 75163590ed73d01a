-- Locks the oldest matching dead letters, except those with whose copies somebody is at work; whoever redrives or purges at
-- the same time takes others.
select d.id, d.group_name, d.attempts, d.error, d.failed_at, q.name, p.name, d.partition_id, d.seq,
       r.segment_id, (r.ordinal + d.seq - r.first_seq)::int, d.copy_partition_id, d.copy_seq
from lockstep.dead_letter d
join lockstep.queue q on q.id = d.queue_id
join lockstep.partition p on p.id = d.partition_id
cross join lateral lockstep.runs_between(d.partition_id, d.seq - 1, d.seq) r
where d.id in (select w.id from lockstep.dead_letters_where($1::bigint[], $2::text, $3::text, $4::text, $5::timestamptz, $6::timestamptz) w)
  and (d.copy_seq is null or not lockstep.is_under_lease(d.copy_partition_id, d.copy_seq, coalesce($8::timestamptz, clock_timestamp())))
order by d.id limit $7 for update of d skip locked
