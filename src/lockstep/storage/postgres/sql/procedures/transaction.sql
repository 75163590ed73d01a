-- Takes the locks that the acks and pushes of one transaction need, all at once and in order: queues with a max_size,
-- then partitions, with those to which messages go that die. Who calls this pushes what dies (dead_queue.sql).
create or replace function lockstep.lock_for_transaction(_queue_ids int[], _partition_ids bigint[], _lease_ids uuid[]) returns void language plpgsql as $$
declare
    _locked bigint[] := lockstep.begin_forwarding(_partition_ids
        || array(select c.partition_id from lockstep.cursor c where c.lease_id = any (_lease_ids))
        || array(select d.partition_id from lockstep.delivery d where d.lease_id = any (_lease_ids)));
begin
    perform 1 from lockstep.queue q where q.id = any (_queue_ids) and q.max_size > 0 order by q.name for no key update;
    perform 1 from lockstep.partition p where p.id = any (_locked) order by p.id for no key update;
end $$;
