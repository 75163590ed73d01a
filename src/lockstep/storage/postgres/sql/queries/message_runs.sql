-- Runs of stored messages of a queue after a place (partition id, seq), in that order. The order comes from the nested
-- loop over the ordered partitions; to sort would mean to read the whole queue for a page.
select p.id, p.name, r.first_seq, r.last_seq, r.segment_id, r.ordinal, r.created_at
from (
    select p.id, p.name from lockstep.partition p
    where p.queue_id = $1 and p.id >= $3 and p.id >= coalesce($2::bigint, 0) and p.id <= coalesce($2, 9223372036854775807)
    order by p.id
) p
cross join lateral (
    select r.*, s.created_at from lockstep.run r join lockstep.segment s on s.id = r.segment_id
    where r.partition_id = p.id
      and (p.id > $3 or r.first_seq >= coalesce((
          select f.first_seq from lockstep.run f where f.partition_id = p.id and f.first_seq <= $4::bigint + 1 order by f.first_seq desc limit 1), 0))
      and (p.id > $3 or r.last_seq > $4)
      and ($5::timestamptz is null or s.created_at >= $5) and ($6::timestamptz is null or s.created_at < $6)
    order by r.first_seq limit $7
) r
limit $7
