-- How full queues are and how far their groups, as the last walk over the partitions found it (procedures/sample.sql).
--
-- A row per group, and one with group 0 for the queue. The rows of a walk that goes on have walking = true, and upto says how
-- far it is. Medians are kept per slice, with the number of cursors that each stands for.
create table lockstep.figure (
    queue_id int not null,
    group_id int not null,
    walking boolean not null,
    at timestamptz not null,
    upto bigint not null default 0,
    partitions bigint not null default 0,
    stored bigint not null default 0,
    seqs bigint not null default 0,
    base bigint not null default 0,
    lag bigint not null default 0,
    with_lag bigint not null default 0,
    in_flight bigint not null default 0,
    leased bigint not null default 0,
    busy bigint not null default 0,
    ready bigint not null default 0,
    waiting bigint not null default 0,
    stopped bigint not null default 0,
    dead_letters bigint not null default 0,
    oldest_at timestamptz,
    created_sum double precision not null default 0,
    newest_at timestamptz,
    lag_min bigint,
    lag_max bigint,
    created_medians double precision[] not null default '{}',
    lag_medians double precision[] not null default '{}',
    weights bigint[] not null default '{}',
    primary key (queue_id, group_id, walking)
);

-- A sample is taken in slices now, and lists read what it found.
drop function if exists lockstep.sample(int, timestamptz);
drop function if exists lockstep.sample_seqs(int);
drop function if exists lockstep.sample_pending(int);
drop function if exists lockstep.queue_sums(int, timestamptz);
