-- Expiry, dead queues and balanced queues. A queue that uses none of them, and a message that has no time of its own, pay
-- nothing but the null.

alter table lockstep.queue
    add column expire_seconds int not null default 0,
    add column on_expired text not null default 'dead' check (on_expired in ('dead', 'drop')),
    add column dead_queue_id int,
    add column partitions int not null default 0,
    add column expiring boolean not null default false;  -- some message may have a time of its own
create index queue_dead_queue on lockstep.queue (dead_queue_id) where dead_queue_id is not null;

-- Beside the body, because a pop must know it and does not read bodies: by ordinal, null is as the queue says.
alter table lockstep.segment add column expires_at timestamptz[];

-- The queue to which the message is still to be pushed, within the transaction that records its death; null after it.
alter table lockstep.dead_letter add column forward_to int;
create index dead_letter_forward on lockstep.dead_letter (id) where forward_to is not null;

-- Its answer has grown, which a function cannot do while it is there; the procedures make it anew.
drop function if exists lockstep.ack_leases(uuid[], timestamptz);
