-- The same as message_newest for one partition ($2), by its runs, before a seq ($6): until they hold $9 messages within
-- the period, and of a filtered list at most $10. A run that does not match gives a row whose partition is null.
select case when r.wanted > 0 then p.id end as id, p.name, r.first_seq, r.last_seq, r.segment_id, r.ordinal, r.created_at, q.name as queue
from lockstep.partition p
join lockstep.queue q on q.id = p.queue_id
cross join lateral (
    select t.*, sum(t.wanted) over (order by t.first_seq desc) - t.wanted as before
    from (
        select r.*, s.created_at,
               case when ($7::timestamptz is null or s.created_at >= $7) and ($8::timestamptz is null or s.created_at < $8)
                    then r.last_seq - r.first_seq + 1 else 0 end as wanted
        from (
            select r.* from lockstep.run r
            where r.partition_id = p.id and r.first_seq < $6::bigint and r.segment_id is not null order by r.first_seq desc
            limit case when coalesce($7::timestamptz, $8::timestamptz) is null then $9::bigint else $10::bigint end
        ) r
        join lockstep.segment s on s.id = r.segment_id
    ) t
) r
where p.id = $2::bigint and p.queue_id = $1::int and ($3::text is null or q.namespace = $3) and ($4::text is null or q.task = $4)
  and $5::bigint is not null and r.before < $9::bigint
order by r.first_seq desc
