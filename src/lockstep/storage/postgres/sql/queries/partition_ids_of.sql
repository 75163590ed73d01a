-- The ids of a queue's ($1) partitions by name, in this order; 0 for one that does not exist.
select array(
    select coalesce((select p.id from lockstep.partition p where p.queue_id = $1::int and p.name = t.name), 0)
    from unnest($2::text::text[]) with ordinality t (name, o) order by t.o)
