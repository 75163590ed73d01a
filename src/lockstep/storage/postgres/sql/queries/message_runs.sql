-- Runs of stored messages of a queue after a place (partition id, seq), in that order. The order comes from the nested
-- loop over the ordered partitions; sorting would read the whole queue for a page.
select p.id, p.name, r.first_seq, r.last_seq, r.segment_id, r.ordinal, r.created_at
from (
    select p.id, p.name from lockstep.partition p
    where p.queue_id = $1 and p.id >= $3 and p.id >= coalesce($2::bigint, 0) and p.id <= coalesce($2, 9223372036854775807)
    order by p.id
) p
cross join lateral lockstep.runs_after(p.id, case when p.id > $3 then 0 else $4::bigint end, $5::timestamptz, $6::timestamptz, $7) r
limit $7
