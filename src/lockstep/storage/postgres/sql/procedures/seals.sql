-- Which queues are encrypted, and from when on all their messages are.
-- Locks: queue rows, by name.

-- Queues whose messages from before their encryption are all gone no longer accept unencrypted messages from now on.
-- The rows are locked first, so that what is seen then is complete.
create or replace function lockstep.note_sealed() returns void language plpgsql as $$
begin
    perform 1 from lockstep.queue q
    where q.encryption and (q.sealed_after > 0 or q.waiting_sealed_after > 0) order by q.name for no key update;
    update lockstep.queue q set sealed_after = 0
    where q.encryption and q.sealed_after > 0 and not exists (
        select 1 from lockstep.segment s where s.queue_id = q.id and s.id <= q.sealed_after and s.codec & 4 = 0);
    update lockstep.queue q set waiting_sealed_after = 0
    where q.encryption and q.waiting_sealed_after > 0 and not exists (
        select 1 from lockstep.scheduled s where s.queue_id = q.id and s.id <= q.waiting_sealed_after and s.codec & 4 = 0);
end $$;

-- Records the last message of a queue that is about to be encrypted; its row is locked.
create or replace function lockstep.begin_encryption(_queue_id int) returns void language plpgsql as $$
begin
    perform 1 from lockstep.partition p where p.queue_id = _queue_id order by p.id for no key update;
    update lockstep.queue q
    set sealed_after = coalesce((select s.id from lockstep.segment s where s.queue_id = _queue_id order by s.id desc limit 1), 0),
        waiting_sealed_after = coalesce((select max(s.id) from lockstep.scheduled s where s.queue_id = _queue_id), 0)
    where q.id = _queue_id;
end $$;

-- Stores the messages of a queue unencrypted from now on; returns its id, null if it does not exist.
create or replace function lockstep.stop_encryption(_queue text, _at timestamptz) returns int language plpgsql as $$
declare
    _queue_id int;
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.need_names('{admin}', array[_queue]); end if;
    update lockstep.queue q set encryption = false, configured_at = coalesce(_at, clock_timestamp()) where q.name = _queue
    returning q.id into _queue_id;
    return _queue_id;
end $$;
