-- The number of stored messages of a queue, and of the partitions that contain some ($3: counted now, $4: up to this
-- many; see figures.sql).
select f.stored, f.with_lag, case when f.stored is not null then 0::bigint end, f.oldest_at, f.figures_at
from lockstep.figures(array[$1::int], $3::boolean, $4::bigint, $2::timestamptz) f where f.group_id = 0
