-- Notifies every listening process that a queue has changed, because each caches some of its options. Processes
-- announce the pushes that they make; see storage/postgres/listen.py. A push within an application's transaction can be
-- announced only by its commit.
create or replace function lockstep.tell_queue_changed() returns trigger language plpgsql as $$
begin
    perform pg_notify('lockstep_queue', coalesce(new.name, old.name));
    return null;
end $$;

create or replace trigger queue_changed after update or delete on lockstep.queue
for each row execute function lockstep.tell_queue_changed();

-- Announces, when this transaction commits, that messages were pushed to a queue, or scheduled there.
create or replace function lockstep.notify_pushed(_queue text, _scheduled boolean default false) returns void language plpgsql as $$
begin
    if not lockstep.is_trusted() then perform lockstep.need_names('{push}', array[_queue]); end if;
    perform pg_notify(
        'lockstep_push',
        json_build_array('', json_build_object(_queue, case when _scheduled then json_build_array(0, 1) else json_build_array(1, 0) end))::text
    );
end $$;
