-- What is stored in a queue, and in how many of its partitions.
select coalesce(sum(t.stored), 0)::bigint, count(*) filter (where t.stored > 0)
from (select lockstep.lag(p.id, lockstep.start_of(p.id)) as stored from lockstep.partition p where p.queue_id = $1) t
