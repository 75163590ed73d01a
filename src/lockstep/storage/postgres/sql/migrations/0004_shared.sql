-- Shared groups: leases on single messages.

alter table lockstep.queue add column group_mode text not null default 'ordered' check (group_mode in ('ordered', 'shared'));
alter table lockstep.consumer_group add column mode text not null default 'ordered' check (mode in ('ordered', 'shared'));

-- What of a shared group is in flight: seqs that were handed out and are not done, a range per lease. due_at is the lease's
-- deadline while there is one, else when the messages are to be delivered again; see core/shared.py. What is done leaves
-- no row.
create table lockstep.delivery (
    partition_id bigint not null,
    group_id int not null,
    from_seq bigint not null,
    to_seq bigint not null,
    lease_id uuid,
    leased_at timestamptz,
    due_at timestamptz not null,
    attempts int not null,
    primary key (partition_id, group_id, from_seq)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
create index delivery_due on lockstep.delivery (group_id, due_at, partition_id, from_seq);
create index delivery_lease on lockstep.delivery (lease_id) where lease_id is not null;

-- When a message that was not completed is to be delivered again.
alter type lockstep.ack_item add attribute retry_at timestamptz;

-- How lockstep.shared_settle talks to itself: how an ack ends the delivery of a message.
create type lockstep.shared_end as (
    item int, seq bigint, error text, noop boolean, applied boolean, again_at timestamptz, attempts int, died boolean,
    recorded boolean, reason text, completed boolean, from_seq bigint
);
