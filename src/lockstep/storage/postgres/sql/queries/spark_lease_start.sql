-- The ordinal before the first that a stream has not acked; the last one if all are acked.
select coalesce(min(l.ordinal) filter (where l.acked_at is null) - 1, max(l.ordinal), 0)
from lockstep.spark_lease l where l.stream = $1
