-- Requests that were accepted while the server was busy, and are applied later.

-- A row is a bundle: all requests that one insert queued, as a segment is all messages that one transaction pushed. The id of
-- a request is the bundle's UUIDv7 with the request's ordinal in its low 16 bits.
create table lockstep.operation (
    serial bigint generated always as identity primary key,
    uuid uuid not null,
    kind text not null check (kind in ('push', 'ack')),
    priority smallint not null,
    pending boolean not null default true,
    request_count int not null,
    message_count int not null,
    bytes bigint not null,
    partition_ids bigint[] not null,  -- its lanes: it is applied when it is the oldest in all of them
    codec smallint not null,
    requests bytea,  -- null once nothing of it is left to do
    results bytea,  -- by ordinal, as far as they are known
    failed_count int not null default 0,
    retries int not null default 0,
    error text,
    worker text,
    created_at timestamptz not null,
    due_at timestamptz not null,
    completed_at timestamptz,
    check (pending = (completed_at is null))
) with (fillfactor = 80);
alter table lockstep.operation
    alter requests set storage external,  -- compressed already
    alter results set storage external,
    alter partition_ids set storage external;
create unique index operation_uuid on lockstep.operation (uuid);
create index operation_pending on lockstep.operation (kind, priority, serial) where pending;
create index operation_completed on lockstep.operation (completed_at) where not pending;
create index operation_failed on lockstep.operation (serial) where failed_count > 0;

-- The partitions for which a push waits. Lane 0, which is no partition, has all acks.
create table lockstep.operation_lane (
    partition_id bigint not null,
    serial bigint not null,
    primary key (partition_id, serial)
);

-- They learn of operations, which changes what they take; the procedures make them anew.
drop function if exists lockstep.push_segments(
    int[], int[], smallint[], bytea[], int[], bigint[], int[], int[], uuid[], int[], int[], text[], int[], int[], uuid[], int[], int[],
    bytea[], text[], uuid[], text[], text[], text[], bytea[], text[], boolean, timestamptz, timestamptz[], int
);
drop function if exists lockstep.push_run(int, bigint, smallint, int, bytea, bytea[], boolean, timestamptz, int);
