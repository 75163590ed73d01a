-- How busy each group of each queue is ($3: counted now, $4: up to this many partitions and cursors; see figures.sql).
select q.name as queue, g.name as "group", f.partitions, f.busy as partitions_leased, f.ready as partitions_ready,
       f.waiting as partitions_waiting, f.stopped as partitions_stopped, f.figures_at
from lockstep.figures(
    array(select q.id from lockstep.queue q where $1::int is null or q.id = $1), $3::boolean, $4::bigint, $2::timestamptz) f
join lockstep.consumer_group g on g.id = f.group_id
join lockstep.queue q on q.id = g.queue_id
order by q.name, g.name
