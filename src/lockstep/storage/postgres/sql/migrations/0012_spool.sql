-- What servers that buffer pushes need to know.

-- One row, made when it is first needed: which database this is, and what all of its servers do.
create table lockstep.system (
    only_row boolean primary key default true check (only_row),
    id uuid not null default gen_random_uuid(),
    push_maintenance boolean not null default false,
    pop_maintenance boolean not null default false,
    changed_at timestamptz not null
);

-- Up to where the spool of a machine is in the database. Changed in the transaction that pushes what is in it.
create table lockstep.spool (
    id uuid primary key,
    drained_to bigint not null,
    changed_at timestamptz not null
) with (fillfactor = 50);
