-- How many operations of each kind wait, and how many have failed. The cost follows the bundles that wait.
select o.kind, sum(o.request_count)::bigint, sum(o.message_count)::bigint, sum(o.bytes)::bigint, min(o.created_at)
from lockstep.operation o where o.pending group by o.kind
union all
select 'failed', coalesce(sum(o.failed_count), 0)::bigint, 0, 0, null from lockstep.operation o where o.failed_count > 0
