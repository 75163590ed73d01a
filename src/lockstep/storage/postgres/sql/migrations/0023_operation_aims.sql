-- What operations are for, so that lists can tell without looking into their content: by ordinal the queues, the partition,
-- and how many messages; and the queues of all of them.
alter table lockstep.operation
    add queues text[] collate "C",
    add aims bytea;
alter table lockstep.operation alter aims set storage external;  -- compressed already

drop function if exists lockstep.queue_operations(text, smallint, int, int, bigint, bigint[], smallint, bytea, timestamptz);
