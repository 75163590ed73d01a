-- Runs of stored messages of a queue after a place (partition id, seq), in that order: at most $7, created within a period
-- ($5, $6). It walks at most $8 runs, and partitions without any, and `looked` counts them; the last of them comes in any
-- case, without a segment if it is not wanted, so that the caller knows how far this looked. The order comes from the nested
-- loop over the ordered partitions; to sort would mean to read the whole queue for a page.
select w.id, w.name, w.first_seq, w.last_seq, case when w.wanted then w.segment_id end as segment_id, w.ordinal, w.created_at, w.looked
from (
    select p.id, p.name, r.first_seq, r.last_seq, r.segment_id, r.ordinal, r.created_at, row_number() over () as looked,
           coalesce(r.segment_id is not null and ($5::timestamptz is null or r.created_at >= $5) and ($6::timestamptz is null or r.created_at < $6), false) as wanted
    from (
        select p.id, p.name from lockstep.partition p
        where p.queue_id = $1 and p.id >= $3 and p.id >= coalesce($2::bigint, 0) and p.id <= coalesce($2, 9223372036854775807)
        order by p.id
    ) p
    left join lateral lockstep.runs_after(p.id, case when p.id > $3 then 0 else $4::bigint end, $8) r on true
    limit $8
) w
where w.wanted or w.looked = $8
limit $7
