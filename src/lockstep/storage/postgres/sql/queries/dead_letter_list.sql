-- Dead letters that match, newest first, with the places of their messages.
select d.id, d.group_name as "group", d.attempts, d.error, d.failed_at, q.name as queue, p.name as partition, d.partition_id, d.seq,
       r.segment_id, (r.ordinal + d.seq - r.first_seq)::int as ordinal
from lockstep.dead_letter_page($1::bigint[], $2::text, $3::text, $4::text, $5::timestamptz, $6::timestamptz, $7, $8) d
cross join lateral (select q.name from lockstep.queue q where q.id = d.queue_id limit 1) q
cross join lateral (select p.name from lockstep.partition p where p.id = d.partition_id limit 1) p
cross join lateral lockstep.runs_between(d.partition_id, d.seq - 1, d.seq) r
order by d.failed_at desc, d.id desc
