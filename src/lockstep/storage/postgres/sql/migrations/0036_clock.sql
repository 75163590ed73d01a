-- The latest time that the duty `clock` has seen, by which it notices that the clock was set back (procedures/clock.sql).
create table lockstep.clock (
    only_row boolean primary key default true check (only_row),
    seen_at timestamptz not null,
    back interval,  -- by how much it was set back, while what waits is moved
    missed boolean not null default false  -- somebody held what was to be moved: the walk is to be done once more
);
