-- A payload as text: JSON unchanged, opaque bytes as base64.
create or replace function lockstep.as_text(_payload bytea, _encoding text) returns text language plpgsql immutable as $$
begin
    return case when _encoding is null then convert_from(_payload, 'UTF8') else encode(_payload, 'base64') end;
exception when character_not_in_repertoire or untranslatable_character then
    return encode(_payload, 'base64');
end $$;

-- Stored messages for readers in SQL. The content of a message is available if its segment is plain (a small push, a
-- push from SQL, or a queue with compression none); for a packed segment only its position is known here.
create or replace view lockstep.messages as
select q.name as queue, p.name as partition, r.first_seq + o.o as seq,
       lockstep.message_id(s.uuid, (r.ordinal + o.o)::int) as message_id, s.created_at, s.codec = 0 as readable,
       lockstep.as_text(s.payloads[r.ordinal + o.o + 1], s.encodings[r.ordinal + o.o + 1]) as payload,
       s.transaction_ids[r.ordinal + o.o + 1] as transaction_id, s.trace_ids[r.ordinal + o.o + 1] as trace_id,
       s.kinds[r.ordinal + o.o + 1] as kind, s.refs[r.ordinal + o.o + 1] as reference,
       s.encodings[r.ordinal + o.o + 1] as encoding, convert_from(s.headers[r.ordinal + o.o + 1], 'UTF8')::jsonb as headers,
       s.producer_subs[r.ordinal + o.o + 1] as producer_sub
from lockstep.run r
join lockstep.segment s on s.id = r.segment_id
join lockstep.partition p on p.id = r.partition_id
join lockstep.queue q on q.id = p.queue_id
cross join lateral generate_series(0, (r.last_seq - r.first_seq)::int) o (o);

-- Views for people: the tables with names instead of ids. A filter on the queue uses an index in each of them.
-- PostgreSQL computes a column with a count only if the query selects it. The subqueries are ordered so that the
-- planner joins in the order written here, using the index with that order, whatever row counts it assumes; filters
-- still reach them.

create or replace view lockstep.queues as
select q.name as queue, q.namespace, q.task, q.created_at, q.configured_at,
       (select count(*) from lockstep.partition p where p.queue_id = q.id) as partitions,
       (select coalesce(sum(lockstep.lag(p.id, lockstep.start_of(p.id))), 0)::bigint from lockstep.partition p where p.queue_id = q.id) as messages,
       (select count(*) from lockstep.scheduled s where s.queue_id = q.id) as scheduled,
       (select count(*) from lockstep.dead_letter d where d.queue_id = q.id) as dead_letters,
       q.lease_seconds, q.retry_limit, q.on_exhausted, q.max_size, q.priority, q.group_mode, q.compression, q.encryption,
       (select d.name from lockstep.queue d where d.id = q.dead_queue_id) as dead_queue
from lockstep.queue q;

create or replace view lockstep.partitions as
select q.name as queue, p.name as partition, p.id as partition_id, p.created_at,
       lockstep.next_seq(p.id, 0) as first_seq, lockstep.last_seq(p.id) as last_seq,
       lockstep.lag(p.id, lockstep.start_of(p.id)) as messages,
       (select s.created_at from lockstep.next_run(p.id, 0) r join lockstep.segment s on s.id = r.segment_id) as oldest_at,
       (select s.created_at from lockstep.run r join lockstep.segment s on s.id = r.segment_id
        where r.partition_id = p.id order by r.first_seq desc limit 1) as newest_at
from lockstep.queue q
cross join lateral (select p.* from lockstep.partition p where p.queue_id = q.id order by p.name) p;

-- What each group has not done in each partition, including partitions where its cursor does not exist yet. `lag`
-- includes messages in flight, which `in_flight` counts.
create or replace view lockstep.lag as
select q.name as queue, p.name as partition, g.name as group_name, g.mode,
       lockstep.done_upto(c.partition_id, c.group_id, c.acked) as acked, lockstep.last_seq(p.id) as last_seq,
       lockstep.behind(c) as lag, lockstep.held(c, clock_timestamp()) as in_flight,
       (select s.created_at from lockstep.head_run(c) r cross join lateral (
           select s.created_at from lockstep.segment s where s.id = r.segment_id limit 1) s) as oldest_at,
       lockstep.due_again(c) as due_at, c.consumed_at
from lockstep.queue q
cross join lateral (select p.* from lockstep.partition p where p.queue_id = q.id order by p.name) p
cross join lateral (select c.* from lockstep.cursors_at(q.id, p.id) c order by c.group_id offset 0) c
join lockstep.consumer_group g on g.id = c.group_id;

create or replace view lockstep.groups as
select q.name as queue, g.name as group_name, g.mode, g.created_at,
       coalesce(s.mode, 'all') as subscription, s.from_at as subscription_from_at,
       (select coalesce(sum(lockstep.behind(c)), 0)::bigint
        from (select p.id from lockstep.partition p where p.queue_id = g.queue_id order by p.name) p
        cross join lateral (select c.* from lockstep.cursor_at(g, p.id) c offset 0) c) as lag,
       (select coalesce(sum(lockstep.held(c, clock_timestamp())), 0)::bigint
        from (select p.id from lockstep.partition p where p.queue_id = g.queue_id order by p.name) p
        cross join lateral (select c.* from lockstep.cursor_at(g, p.id) c offset 0) c) as in_flight
from lockstep.consumer_group g
join lockstep.queue q on q.id = g.queue_id
left join lockstep.subscription s on s.queue_id = g.queue_id and s.group_name = g.name;

-- Live leases: of a partition in an ordered group, of single messages in a shared group.
create or replace view lockstep.leases as
select q.name as queue, p.name as partition, g.name as group_name, c.lease_id, c.acked + 1 as first_seq, c.lease_to as last_seq,
       c.attempts + 1 as attempt, c.leased_at, c.due_at as expires_at
from lockstep.queue q
cross join lateral (select p.* from lockstep.partition p where p.queue_id = q.id order by p.name) p
cross join lateral (select c.* from lockstep.cursor c where c.partition_id = p.id order by c.group_id offset 0) c
join lockstep.consumer_group g on g.id = c.group_id
where c.lease_id is not null and c.due_at > clock_timestamp()
union all
select q.name, p.name, g.name, d.lease_id, d.from_seq, d.to_seq, d.attempts + 1, d.leased_at, d.due_at
from lockstep.queue q
cross join lateral (select p.* from lockstep.partition p where p.queue_id = q.id order by p.name) p
cross join lateral (select d.* from lockstep.delivery d where d.partition_id = p.id order by d.group_id, d.from_seq offset 0) d
join lockstep.consumer_group g on g.id = d.group_id
where d.lease_id is not null and d.due_at > clock_timestamp();

-- Where a group is stuck. `stopped`: its attempts are used up, and the queue's on_exhausted is `stop`. `failing`: the
-- next message, or a message in flight of a shared group, has failed before. `lease expired`: nobody has popped since.
create or replace view lockstep.stuck_partitions as
select q.name as queue, p.name as partition, g.name as group_name,
       case when c.due_at = 'infinity' then 'stopped'
            when c.lease_id is not null and c.due_at <= clock_timestamp() then 'lease expired'
            else 'failing' end as reason,
       c.attempts, lockstep.next_seq(c.partition_id, c.acked) as seq, c.due_at, lockstep.behind(c) as lag
from lockstep.queue q
cross join lateral (select p.* from lockstep.partition p where p.queue_id = q.id order by p.name) p
cross join lateral (select c.* from lockstep.cursor c where c.partition_id = p.id order by c.group_id offset 0) c
join lockstep.consumer_group g on g.id = c.group_id
where c.due_at = 'infinity' or c.attempts > 0 or (c.lease_id is not null and c.due_at <= clock_timestamp())
union all
select q.name, p.name, g.name,
       case when d.due_at = 'infinity' then 'stopped'
            when d.lease_id is not null and d.due_at <= clock_timestamp() then 'lease expired'
            else 'failing' end,
       d.attempts, d.from_seq, d.due_at, lockstep.behind(c)
from lockstep.queue q
cross join lateral (select p.* from lockstep.partition p where p.queue_id = q.id order by p.name) p
cross join lateral (select d.* from lockstep.delivery d where d.partition_id = p.id order by d.group_id, d.from_seq offset 0) d
join lockstep.cursor c on c.partition_id = p.id and c.group_id = d.group_id
join lockstep.consumer_group g on g.id = d.group_id
where d.due_at = 'infinity' or d.attempts > 0 or (d.lease_id is not null and d.due_at <= clock_timestamp());

-- Dead letters with their messages; `readable` as in lockstep.messages.
create or replace view lockstep.dead_letters as
select d.id, q.name as queue, p.name as partition, d.seq, d.group_name, d.attempts, d.error, d.failed_at,
       lockstep.message_id(s.uuid, (r.ordinal + d.seq - r.first_seq)::int) as message_id, s.created_at, s.codec = 0 as readable,
       lockstep.as_text(
           s.payloads[r.ordinal + d.seq - r.first_seq + 1], s.encodings[r.ordinal + d.seq - r.first_seq + 1]) as payload
from lockstep.queue q
-- A range, so that only the index that begins with the queue has this order.
cross join lateral (
    select d.* from lockstep.dead_letter d where d.queue_id between q.id and q.id order by d.queue_id, d.failed_at, d.id) d
join lockstep.partition p on p.id = d.partition_id
cross join lateral lockstep.runs_between(d.partition_id, d.seq - 1, d.seq) r
join lockstep.segment s on s.id = r.segment_id;

comment on view lockstep.messages is 'Stored messages. What they hold is there if readable is true: the others are packed, and Lockstep''s clients and Spark read them.';
comment on column lockstep.messages.readable is 'Whether SQL can read the payload and the other fields of the message: not if its segment is compressed.';
comment on view lockstep.queues is 'Queues, with their main options and how much they hold.';
comment on view lockstep.partitions is 'Partitions of queues, with what is stored in them.';
comment on view lockstep.lag is 'What each group has before it in each partition.';
comment on view lockstep.groups is 'Consumer groups of queues, with what is before them.';
comment on view lockstep.leases is 'Live leases.';
comment on view lockstep.stuck_partitions is 'Partitions in which a group does not get on, and why.';
comment on view lockstep.dead_letters is 'Dead letters, with their messages as lockstep.messages shows them.';
