-- A change of a queue is told to every process that listens, whoever made it: they remember some of its options.
-- Pushes are announced by the processes that make them; see storage/postgres/listen.py.
create or replace function lockstep.tell_queue_changed() returns trigger language plpgsql as $$
begin
    perform pg_notify('lockstep_queue', coalesce(new.name, old.name));
    return null;
end $$;

create or replace trigger queue_changed after update or delete on lockstep.queue
for each row execute function lockstep.tell_queue_changed();
