-- The names that locked rows stand for: $1 has their tables, $2 their tuple ids.
select t.o::int, x.queue, x.partition, x.consumer_group
from unnest($1::text[], $2::text[]) with ordinality t (relation, place, o)
cross join lateral (
    select q.name as queue, p.name as partition, null as consumer_group
    from lockstep.partition p join lockstep.queue q on q.id = p.queue_id
    where t.relation = 'lockstep.partition' and p.ctid = t.place::tid
    union all
    select q.name, null, null from lockstep.queue q where t.relation = 'lockstep.queue' and q.ctid = t.place::tid
    union all
    select q.name, p.name, g.name
    from lockstep.cursor c
    join lockstep.partition p on p.id = c.partition_id
    join lockstep.consumer_group g on g.id = c.group_id
    join lockstep.queue q on q.id = p.queue_id
    where t.relation = 'lockstep.cursor' and c.ctid = t.place::tid
) x
