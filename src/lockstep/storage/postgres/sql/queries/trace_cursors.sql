-- The seqs up to which groups have completed and leased each partition of queues ($1). A step of a pipeline that shares
-- no group counts as a group: it has read a partition without gaps, so it is at the seq before the first unread one.
with step as (
    select distinct on (o.name, o.queue_id) o.*
    from lockstep.spark_position o
    join lockstep.pipeline_step s on s.pipeline || '.' || s.step = o.name and s.group_name is null
    join lockstep.queue q on q.id = o.queue_id
    where q.name = any ($1::text[])
    order by o.name, o.queue_id, o.updated_at desc
), unread as (
    select o.name, m.partition_id, min(m.first_seq) as first_seq
    from step o
    join lockstep.segment t on t.queue_id = o.queue_id and t.txid >= pg_snapshot_xmin(o.read_base)
        and not lockstep.is_read(o.read_base, o.read_upto, o.read_segment, t.txid, t.id)
    cross join lateral unnest(t.partition_ids, t.first_seqs) m (partition_id, first_seq)
    group by o.name, m.partition_id
)
select q.name, p.name, g.name, c.acked,
       case when c.lease_id is not null and c.due_at > clock_timestamp() then c.lease_to else c.acked end
from lockstep.cursor c
join lockstep.consumer_group g on g.id = c.group_id
cross join lateral (select p.name, p.queue_id from lockstep.partition p where p.id = c.partition_id limit 1) p
join lockstep.queue q on q.id = p.queue_id
where c.group_id = any (array(
    select g.id from lockstep.consumer_group g join lockstep.queue w on w.id = g.queue_id where w.name = any ($1::text[])
))
union all
select q.name, p.name, o.name, r.upto, r.upto
from step o
join lockstep.queue q on q.id = o.queue_id
join lockstep.partition p on p.queue_id = o.queue_id
left join unread u on u.name = o.name and u.partition_id = p.id
cross join lateral (select coalesce(u.first_seq - 1, 9223372036854775807) as upto) r
