-- How many operations wait, and how many have failed, as sums that every change of a bundle keeps. A session adds to one of
-- 16 rows of a kind, so that few sessions wait for each other.
create table lockstep.operation_sum (
    kind text not null,
    slot smallint not null,
    operations bigint not null default 0,  -- of bundles that wait
    messages bigint not null default 0,
    bytes bigint not null default 0,
    failed bigint not null default 0,  -- operations that failed, in all bundles
    primary key (kind, slot)
) with (fillfactor = 50);
create index operation_done on lockstep.operation (serial) where results is not null;

lock table lockstep.operation in share row exclusive mode;
insert into lockstep.operation_sum (kind, slot, operations, messages, bytes, failed)
select o.kind, 0, coalesce(sum(o.request_count) filter (where o.pending), 0), coalesce(sum(o.message_count) filter (where o.pending), 0),
       coalesce(sum(o.bytes) filter (where o.pending), 0), sum(o.failed_count)
from lockstep.operation o group by o.kind;
