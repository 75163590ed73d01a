-- When a group with the subscription `new` first polled for a queue that did not exist: it begins there, not with its
-- first poll on the queue. A row without a queue is of polls for a namespace and/or task, in which queues may appear.
-- Empty texts stand for what the poll did not name. The table is bounded, because anybody may poll for any name.
create table lockstep.first_poll (
    queue_name text collate "C" not null,
    namespace text collate "C" not null,
    task text collate "C" not null,
    group_name text collate "C" not null,
    since_at timestamptz not null,
    seen_at timestamptz not null,
    primary key (group_name, queue_name, namespace, task)
);
