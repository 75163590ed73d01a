-- Notifies every listening process that a queue has changed, because each caches some of its options.
-- Pushes are announced by the processes that make them; see storage/postgres/listen.py. One in a transaction that is not
-- ours can be announced by its commit alone.
create or replace function lockstep.tell_queue_changed() returns trigger language plpgsql as $$
begin
    perform pg_notify('lockstep_queue', coalesce(new.name, old.name));
    return null;
end $$;

create or replace trigger queue_changed after update or delete on lockstep.queue
for each row execute function lockstep.tell_queue_changed();

-- Says, when this transaction commits, that something was pushed to a queue; or that messages wait for their time there.
create or replace function lockstep.notify_pushed(_queue text, _scheduled boolean default false) returns void language plpgsql as $$
begin
    if not lockstep.is_trusted() then perform lockstep.need_names('{push}', array[_queue]); end if;
    perform pg_notify(
        'lockstep_push',
        json_build_array('', json_build_object(_queue, case when _scheduled then json_build_array(0, 1) else json_build_array(1, 0) end))::text
    );
end $$;
