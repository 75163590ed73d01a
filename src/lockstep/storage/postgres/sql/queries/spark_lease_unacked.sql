-- The ordinals of a stream ($1) after one ($2) and up to another ($3) that are not acked, and whether their group is shared.
select l.ordinal, g.mode = 'shared'
from lockstep.spark_lease l left join lockstep.consumer_group g on g.id = l.group_id
where l.stream = $1 and l.ordinal > $2::bigint and l.ordinal <= $3::bigint and l.acked_at is null
order by l.ordinal
