-- The queue at or after a place, and how far its next partitions reach: the place to verify next.
select q.id, q.name, p.after, p.upto, p.partitions, (select n.name from lockstep.queue n where n.name > q.name order by n.name limit 1)
from (select q.id, q.name from lockstep.queue q where q.name >= $1 order by q.name limit 1) q
cross join lateral (
    select case when q.name = $1 then $2::bigint else 0 end as after, max(p.id) as upto, count(*) as partitions
    from (
        select p.id from lockstep.partition p
        where p.queue_id = q.id and p.id > case when q.name = $1 then $2::bigint else 0 end order by p.id limit $3
    ) p
) p
