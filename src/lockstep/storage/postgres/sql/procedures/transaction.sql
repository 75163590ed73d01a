-- Takes the locks that the acks and pushes of one transaction need, all at once and in order: queues with a max_size,
-- then partitions, including those that dying messages go to. The caller pushes what dies (dead_queue.sql).
create or replace function lockstep.lock_for_transaction(_queue_ids int[], _partition_ids bigint[], _lease_ids uuid[]) returns void language plpgsql as $$
declare
    _locked bigint[] := lockstep.begin_forwarding(_partition_ids
        || array(select c.partition_id from lockstep.cursor c where c.lease_id = any (_lease_ids))
        || array(select d.partition_id from lockstep.delivery d where d.lease_id = any (_lease_ids)));
begin
    if not lockstep.is_trusted() then perform lockstep.need_leases('{push,pop}', _lease_ids, _partition_ids, _queue_ids); end if;
    perform 1 from lockstep.queue q where q.id = any (_queue_ids) and q.max_size > 0 order by q.name for no key update;
    perform 1 from lockstep.partition p where p.id = any (_locked) order by p.id for no key update;
end $$;

-- Holds the leases, whose partitions are locked, until the transaction ends; returns the indexes of those that are not
-- live.
create or replace function lockstep.hold_leases(_lease_ids uuid[], _at timestamptz) returns setof int language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.need_leases('{pop}', _lease_ids); end if;
    perform 1 from lockstep.cursor c where c.lease_id = any (_lease_ids) order by c.partition_id, c.group_id for no key update;
    perform 1 from lockstep.delivery d where d.lease_id = any (_lease_ids) order by d.partition_id, d.group_id, d.from_seq for no key update;
    return query
    select t.o::int from unnest(_lease_ids) with ordinality t (id, o)
    where not exists (
        select 1 from lockstep.cursor c join lockstep.consumer_group g on g.id = c.group_id where c.lease_id = t.id and c.due_at > _now)
      and not exists (
        select 1 from lockstep.delivery d join lockstep.consumer_group g on g.id = d.group_id where d.lease_id = t.id and d.due_at > _now)
    order by t.o;
end $$;
