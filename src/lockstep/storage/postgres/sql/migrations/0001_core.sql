-- Queues, partitions, segments, runs, groups and cursors.
--
-- There are no foreign keys between the tables that a push or a pop writes: each would cost a lookup per row.
-- The procedures keep them consistent under the partition lock, and verify checks it.

create table lockstep.queue (
    id int generated always as identity primary key,
    name text collate "C" not null unique,
    namespace text collate "C" not null,
    task text collate "C" not null,
    created_at timestamptz not null,
    configured_at timestamptz not null,
    lease_seconds int not null,
    retry_limit int not null,
    retry_delay_ms bigint not null,
    retry_backoff double precision not null,
    retry_delay_ms_max bigint not null,
    on_exhausted text not null check (on_exhausted in ('dead', 'stop', 'drop')),
    max_size bigint not null,
    ttl_seconds int not null,
    priority int not null,
    delay_seconds int not null,
    window_seconds int not null,
    retention_enabled boolean not null,
    retention_seconds int not null,
    completed_retention_seconds int not null,
    max_wait_seconds int not null,
    encryption boolean not null,
    compression text not null check (compression in ('zstd', 'none')),
    dead_letter_queue boolean not null,
    dlq_after_max_retries boolean not null
);
create index queue_namespace_task on lockstep.queue (namespace, task);

-- The row is locked by pushes and never updated, so nothing bloats while a long transaction pins the horizon.
create table lockstep.partition (
    id bigint generated always as identity primary key,
    queue_id int not null,
    name text collate "C" not null,
    created_at timestamptz not null,
    unique (queue_id, name)
);
create index partition_queue on lockstep.partition (queue_id, id);

-- All messages of one queue that one transaction pushed. Never changes.
-- The manifest (partition_ids, first_seqs, counts; in the order of the messages) makes it self-describing.
-- codec 0: the arrays hold the messages. codec 1: body holds them packed. codec 3: packed and encrypted.
create table lockstep.segment (
    id bigint generated always as identity primary key,
    queue_id int not null,
    uuid uuid not null,
    created_at timestamptz not null,
    txid xid8 not null default pg_current_xact_id(),
    codec smallint not null,
    message_count int not null,
    partition_ids bigint[] not null,
    first_seqs bigint[] not null,
    counts int[] not null,
    body bytea,
    payloads bytea[],
    transaction_ids text[],
    trace_ids uuid[],
    kinds text[],
    refs text[],
    encodings text[],
    headers bytea[],
    producer_subs text[],
    check ((codec = 0) = (body is null)),
    check ((codec = 0) = (payloads is not null))
);
alter table lockstep.segment
    alter body set storage external,  -- compressed already
    alter partition_ids set storage external,
    alter first_seqs set storage external,
    alter counts set storage external;
create unique index segment_uuid on lockstep.segment (uuid);
create index segment_queue on lockstep.segment (queue_id, id);
create index segment_queue_txid on lockstep.segment (queue_id, txid);

-- Which messages of a segment are whose. segment_id is null where the messages were removed: such a run holds the
-- place of their seqs, and the last run of a partition is never deleted, because the next push numbers from it.
create table lockstep.run (
    partition_id bigint not null,
    first_seq bigint not null,
    last_seq bigint not null,
    segment_id bigint,
    ordinal int not null,
    primary key (partition_id, first_seq) include (last_seq)  -- a push looks by an index-only scan
);
create index run_removed on lockstep.run (partition_id, first_seq) where segment_id is null;

create table lockstep.consumer_group (
    id int generated always as identity primary key,
    queue_id int not null,
    name text collate "C" not null,
    created_at timestamptz not null,
    unique (queue_id, name)
);

-- Where a group begins when it starts afresh; outlives the group.
create table lockstep.subscription (
    queue_id int not null,
    group_name text collate "C" not null,
    mode text not null check (mode in ('all', 'new', 'from')),
    from_at timestamptz,
    created_at timestamptz not null,
    primary key (queue_id, group_name)
);

-- A group's place in one partition. due_at says from when there is something to deliver; see core/rules.py.
create table lockstep.cursor (
    partition_id bigint not null,
    group_id int not null,
    acked bigint not null default 0,
    due_at timestamptz,
    lease_id uuid,
    lease_to bigint,
    leased_at timestamptz,
    attempts int not null default 0,
    consumed_at timestamptz,
    primary key (partition_id, group_id)
) with (fillfactor = 60);
create index cursor_due on lockstep.cursor (group_id, due_at, partition_id) where due_at is not null;
create index cursor_lease on lockstep.cursor (lease_id) where lease_id is not null;

-- Transaction ids that producers gave. Most are UUIDs, and those cost less as such.
create table lockstep.dedup_uuid (
    partition_id bigint not null,
    transaction_id uuid not null,
    seq bigint not null,
    primary key (partition_id, transaction_id)
);
create table lockstep.dedup_text (
    partition_id bigint not null,
    transaction_id text collate "C" not null,
    seq bigint not null,
    primary key (partition_id, transaction_id)
);

create table lockstep.trace_index (
    trace_id uuid not null,
    partition_id bigint not null,
    seq bigint not null,
    primary key (trace_id, partition_id, seq)
);

-- The message itself stays in its segment; what removes it there removes the dead letter.
create table lockstep.dead_letter (
    id bigint generated always as identity primary key,
    queue_id int not null,
    partition_id bigint not null,
    seq bigint not null,
    group_name text collate "C" not null,
    attempts int not null,
    error text,
    failed_at timestamptz not null
);
create index dead_letter_queue on lockstep.dead_letter (queue_id, failed_at, id);
create index dead_letter_message on lockstep.dead_letter (partition_id, seq);

-- Pending messages of queues with a max_size, per group and, as group 0, of the store itself. Spread over slots,
-- so that acks do not wait for each other; the sum of the slots counts.
create table lockstep.depth (
    queue_id int not null,
    group_id int not null,
    slot smallint not null,
    pending bigint not null,
    primary key (queue_id, group_id, slot)
) with (fillfactor = 50);

-- How lockstep.ack_items talks to the functions that it is made of.
create type lockstep.ack_item as (
    item int, partition_id bigint, group_id int, seq bigint, status text, lease_id uuid, error text, by_lease boolean
);
create type lockstep.ack_outcome as (item int, error text, noop boolean, dead boolean, messages bigint);
