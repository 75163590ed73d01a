-- Messages that wait for their time, and recurring ones.

-- One row per message. It gets its seq when it is promoted; until then its partition need not exist.
-- body holds the message packed (codec 1), or packed and encrypted (codec 3), as a segment of one.
create table lockstep.scheduled (
    id bigint generated always as identity primary key,
    queue_id int not null,
    partition_name text collate "C" not null,
    due_at timestamptz not null,
    key text collate "C",
    transaction_id text collate "C",
    created_at timestamptz not null,
    codec smallint not null,
    body bytea not null
);
alter table lockstep.scheduled alter body set storage external;  -- compressed already
-- Whether anything is due, over all queues, is one probe of the first; what is due of one queue is a range of the second.
create index scheduled_due on lockstep.scheduled (due_at, id);
create index scheduled_queue_due on lockstep.scheduled (queue_id, due_at, id);
create unique index scheduled_key on lockstep.scheduled (queue_id, key) where key is not null;
create unique index scheduled_transaction on lockstep.scheduled (queue_id, partition_name, transaction_id)
    where transaction_id is not null;

-- Recurring messages. The queue is named and need not exist. next_at is null when nothing is to come.
create table lockstep.cron (
    name text collate "C" primary key,
    queue text collate "C" not null,
    partition_name text collate "C" not null,
    expression text not null,
    timezone text not null,
    catch_up text not null check (catch_up in ('skip', 'one', 'all')),
    enabled boolean not null,
    codec smallint not null,
    body bytea not null,
    created_at timestamptz not null,
    next_at timestamptz,
    last_at timestamptz
);
create index cron_next on lockstep.cron (next_at) where next_at is not null;
