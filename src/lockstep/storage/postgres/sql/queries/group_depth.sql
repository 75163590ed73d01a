-- What a group has not done in its queue ($3: counted now, $4: up to this many partitions and cursors; see
-- figures.sql).
select f.lag, f.with_lag, f.in_flight, f.oldest_at, f.figures_at
from lockstep.consumer_group g
cross join lateral lockstep.figures(array[g.queue_id], $3::boolean, $4::bigint, $2::timestamptz) f
where g.id = $1 and f.group_id = g.id
