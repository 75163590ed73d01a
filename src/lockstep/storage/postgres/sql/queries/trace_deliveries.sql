-- The ranges of seqs that shared groups have in flight on queues, and whether they are under a live lease.
select q.name, p.name, g.name, d.from_seq, d.to_seq, d.lease_id is not null and d.due_at > clock_timestamp()
from lockstep.delivery d
join lockstep.consumer_group g on g.id = d.group_id
cross join lateral (select p.name, p.queue_id from lockstep.partition p where p.id = d.partition_id limit 1) p
join lockstep.queue q on q.id = p.queue_id
where d.group_id = any (array(
    select c.id from lockstep.consumer_group c join lockstep.queue w on w.id = c.queue_id where w.name = any ($1::text[])
))
