-- Servers that buffer pushes: the mode that all of them share, and how far each has drained its spool.

-- The one row; creates it if it is missing.
create or replace function lockstep.system(_at timestamptz) returns lockstep.system language plpgsql as $$
declare
    _found lockstep.system;
begin
    select * into _found from lockstep.system;
    if not found then
        insert into lockstep.system (changed_at) values (coalesce(_at, clock_timestamp())) on conflict (only_row) do nothing;
        select * into _found from lockstep.system;
    end if;
    return _found;
end $$;

-- Changes the given modes and notifies every listening server.
create or replace function lockstep.set_maintenance(_push boolean, _pop boolean, _at timestamptz) returns lockstep.system language plpgsql as $$
declare
    _changed lockstep.system;
begin
    perform lockstep.system(_at);
    update lockstep.system s
    set push_maintenance = coalesce(_push, s.push_maintenance), pop_maintenance = coalesce(_pop, s.pop_maintenance),
        changed_at = coalesce(_at, clock_timestamp())
    returning s.* into _changed;
    perform pg_notify('lockstep_system', '');
    return _changed;
end $$;

-- Begins to drain a part of a spool; returns the position up to which it was drained before. If that is beyond _start,
-- the part was drained already, completely or up to there, and the caller must not push it. If that is before _start,
-- the database has lost what lies between, and the caller must not push the part either. Otherwise the part counts as
-- drained when this commits. With _aside, the part is a record that is set aside because the database refuses it. The
-- answer says where the last such record begins: if the answer to that call was lost, it tells whether the record was
-- set aside or pushed after all. Locks the row of the spool before anything else, so that simultaneous drains of the
-- same part run one after the other.
create or replace function lockstep.drain_spool(
    _id uuid, _start bigint, _end bigint, _aside boolean, _at timestamptz, out _place bigint, out _set_aside_from bigint
) language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
begin
    insert into lockstep.spool (id, drained_to, changed_at) values (_id, 0, _now) on conflict (id) do nothing;
    select s.drained_to, s.set_aside_from into _place, _set_aside_from from lockstep.spool s where s.id = _id for no key update;
    if _place = _start and _place < _end then
        _set_aside_from := case when _aside then _start else _set_aside_from end;
        update lockstep.spool s set drained_to = _end, set_aside_from = _set_aside_from, changed_at = _now where s.id = _id;
    end if;
end $$;
