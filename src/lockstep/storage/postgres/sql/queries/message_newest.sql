-- Runs of stored messages before a place (segment id $5, ordinal $6), the last stored first: of one queue, or of all
-- queues of a namespace and/or task. It walks segments backwards along segment_queue or segment_pkey, until they hold
-- $9 messages within the period, and of a filtered list at most $10. A segment without a matching run gives one row
-- whose partition is null, so that the caller knows how far this looked. Of a wide segment it reads as many runs as are
-- needed, from its end.
select r.id, r.name, r.first_seq, r.last_seq, s.id as segment_id, r.ordinal, s.created_at, s.queue
from (
    select t.*, sum(t.wanted) over (order by t.id desc) - t.wanted as before
    from (
        select s.id, s.queue_id, s.created_at, s.partition_ids, s.first_seqs, s.counts, q.name as queue,
               case when q.name is not null and ($7::timestamptz is null or s.created_at >= $7) and ($8::timestamptz is null or s.created_at < $8)
                    then s.message_count else 0 end as wanted
        from (
            (select s.* from lockstep.segment s where $1::int is not null and s.queue_id = $1 and s.id <= $5::bigint
            order by s.id desc limit case when coalesce($3::text, $4::text) is null and coalesce($7::timestamptz, $8::timestamptz) is null then $9::bigint else $10::bigint end)
            union all
            (select s.* from lockstep.segment s where $1::int is null and s.id <= $5
            order by s.id desc limit case when coalesce($3::text, $4::text) is null and coalesce($7::timestamptz, $8::timestamptz) is null then $9 else $10 end)
        ) s
        left join lockstep.queue q on q.id = s.queue_id
            and ($3::text is null or q.namespace = $3) and ($4::text is null or q.task = $4)
    ) t
) s
left join lateral (
    select m.partition_id as id, (select p.name from lockstep.partition p where p.id = m.partition_id) as name, r.first_seq, r.last_seq, r.ordinal
    from (
        select m.*, sum(m.n) over (order by m.o) - m.n as begins
        from unnest(s.partition_ids, s.first_seqs, s.counts) with ordinality m (partition_id, first_seq, n, o)
        order by m.o desc
    ) m
    cross join lateral (
        select r.* from lockstep.run r
        where r.partition_id = m.partition_id and r.segment_id = s.id and r.first_seq between m.first_seq and m.first_seq + m.n - 1
        order by r.first_seq desc
    ) r
    where s.wanted > 0 and (s.id < $5 or (m.begins < $6::int and r.ordinal < $6)) and $2::bigint is null
    limit $9
) r on true
where s.before < $9::bigint
order by s.id desc, r.ordinal desc
