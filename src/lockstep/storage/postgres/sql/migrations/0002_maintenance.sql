-- What the maintenance duties know: who does which, what they removed, and how the queues were doing.

-- A duty is done by one server at a time: by whoever claims it when it is due. A claim ends by itself.
create table lockstep.duty (
    name text collate "C" primary key,
    interval_seconds double precision not null,
    next_run_at timestamptz not null,
    claimed_until timestamptz,
    claimed_by text,
    last_started_at timestamptz not null,
    last_finished_at timestamptz,
    last_error text,
    last_effect jsonb,
    runs bigint not null default 0,
    failures bigint not null default 0
);

-- What was removed, by minute. By the queue's name, because it outlives the queue.
create table lockstep.removal (
    at timestamptz not null,
    queue text collate "C" not null,
    kind text collate "C" not null,
    messages bigint not null,
    partitions bigint not null,
    primary key (at, queue, kind)
);

create table lockstep.sample (
    at timestamptz not null,
    queue text collate "C" not null,
    seconds double precision,
    pushed bigint not null,
    completed bigint not null,
    dead bigint not null,
    pending bigint not null,
    lag_seconds double precision not null,
    primary key (at, queue)
);
create index sample_queue on lockstep.sample (queue, at);

-- The sums of the last sample, from which the next one counts: of a group the seqs that it is at, and as group 0 the
-- last seqs of the queue.
create table lockstep.sample_sum (
    queue_id int not null,
    group_id int not null,
    at timestamptz not null,
    seqs bigint not null,
    primary key (queue_id, group_id)
);

-- Of the removed run that is all a partition has left: since when that is known.
alter table lockstep.run add column empty_at timestamptz;
