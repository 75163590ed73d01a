-- A payload as text: JSON unchanged, opaque bytes as base64.
create or replace function lockstep.as_text(_payload bytea, _encoding text) returns text language plpgsql immutable as $$
begin
    return case when _encoding is null then convert_from(_payload, 'UTF8') else encode(_payload, 'base64') end;
exception when character_not_in_repertoire or untranslatable_character then
    return encode(_payload, 'base64');
end $$;

-- What the views below call. A view reads tables with the rights of its owner, but runs functions with those of the caller, who
-- has no tables: so these run with the owner's rights (grants.sql), and say nothing of what the caller may not read. The
-- functions behind them stay as they are, since PostgreSQL inlines those in pops, and would not with rights of their own.

-- Whether the caller may read a queue. Whoever may read the tables may.
create or replace function lockstep.may_read(_queue text) returns boolean language sql stable cost 1000 as $$
    select has_table_privilege(lockstep.caller(), 'lockstep.segment', 'select') or lockstep.may('{browse}', _queue)
$$;

create or replace function lockstep.may_read_partition(_partition_id bigint) returns boolean language sql stable as $$
    select has_table_privilege(lockstep.caller(), 'lockstep.segment', 'select') or exists (
        select 1 from lockstep.partition p join lockstep.queue q on q.id = p.queue_id
        where p.id = _partition_id and lockstep.may('{browse}', q.name))
$$;

create or replace function lockstep.read_stored(_partition_id bigint) returns bigint language sql stable as $$
    select case when lockstep.may_read_partition(_partition_id) then lockstep.lag(_partition_id, lockstep.start_of(_partition_id)) end
$$;

create or replace function lockstep.read_last_seq(_partition_id bigint) returns bigint language sql stable as $$
    select case when lockstep.may_read_partition(_partition_id) then lockstep.last_seq(_partition_id) end
$$;

create or replace function lockstep.read_next_seq(_partition_id bigint, _acked bigint) returns bigint language sql stable as $$
    select case when lockstep.may_read_partition(_partition_id) then lockstep.next_seq(_partition_id, _acked) end
$$;

create or replace function lockstep.read_first_run(_partition_id bigint) returns setof lockstep.run language sql stable rows 1 as $$
    select r.* from lockstep.next_run(_partition_id, 0) r where lockstep.may_read_partition(_partition_id)
$$;

create or replace function lockstep.read_run_of(_partition_id bigint, _seq bigint) returns setof lockstep.run language sql stable rows 1 as $$
    select r.* from lockstep.runs_between(_partition_id, _seq - 1, _seq) r where lockstep.may_read_partition(_partition_id)
$$;

create or replace function lockstep.read_cursors(_queue_id int, _partition_id bigint) returns setof lockstep.cursor language sql stable rows 2 as $$
    select c.* from lockstep.cursors_at(_queue_id, _partition_id) c where lockstep.may_read_partition(_partition_id) order by c.group_id
$$;

create or replace function lockstep.read_cursor(_group lockstep.consumer_group, _partition_id bigint) returns setof lockstep.cursor language sql stable rows 1 as $$
    select c.* from lockstep.cursor_at(_group, _partition_id) c where lockstep.may_read_partition(_partition_id)
$$;

create or replace function lockstep.read_done_upto(_cursor lockstep.cursor) returns bigint language sql stable as $$
    select case when lockstep.may_read_partition(_cursor.partition_id) then lockstep.done_upto(_cursor.partition_id, _cursor.group_id, _cursor.acked) end
$$;

create or replace function lockstep.read_behind(_cursor lockstep.cursor) returns bigint language sql stable as $$
    select case when lockstep.may_read_partition(_cursor.partition_id) then lockstep.behind(_cursor) end
$$;

create or replace function lockstep.read_held(_cursor lockstep.cursor) returns bigint language sql stable as $$
    select case when lockstep.may_read_partition(_cursor.partition_id) then lockstep.held(_cursor, clock_timestamp()) end
$$;

create or replace function lockstep.read_head_run(_cursor lockstep.cursor) returns setof lockstep.run language sql stable rows 1 as $$
    select r.* from lockstep.head_run(_cursor) r where lockstep.may_read_partition(_cursor.partition_id)
$$;

create or replace function lockstep.read_due_again(_cursor lockstep.cursor) returns timestamptz language sql stable as $$
    select case when lockstep.may_read_partition(_cursor.partition_id) then lockstep.due_again(_cursor) end
$$;

-- Stored messages for readers in SQL. The content of a message is available if its segment is plain (a small push, a
-- push from SQL, or a queue with compression none); for a packed segment only its position is known here.
create or replace view lockstep.messages with (security_barrier) as
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
cross join lateral generate_series(0, (r.last_seq - r.first_seq)::int) o (o)
where lockstep.may_read(q.name);

-- Views for people: the tables with names instead of ids. A filter on the queue uses an index in each of them.
-- PostgreSQL computes a column with a count only if the query selects it. The subqueries are ordered so that the
-- planner joins in the order written here, using the index with that order, whatever row counts it assumes; filters
-- still reach them.
-- Each view has the rows that its caller may read. The security barrier keeps functions of the caller away from the other
-- rows, but not from the parts of a union, unless the union is a subquery.

create or replace view lockstep.queues with (security_barrier) as
select q.name as queue, q.namespace, q.task, q.created_at, q.configured_at,
       (select count(*) from lockstep.partition p where p.queue_id = q.id) as partitions,
       (select coalesce(sum(lockstep.read_stored(p.id)), 0)::bigint from lockstep.partition p where p.queue_id = q.id) as messages,
       (select count(*) from lockstep.scheduled s where s.queue_id = q.id) as scheduled,
       (select count(*) from lockstep.dead_letter d where d.queue_id = q.id) as dead_letters,
       q.lease_seconds, q.retry_limit, q.on_exhausted, q.max_size, q.priority, q.group_mode, q.compression, q.encryption,
       (select d.name from lockstep.queue d where d.id = q.dead_queue_id) as dead_queue
from lockstep.queue q
where lockstep.may_read(q.name);

create or replace view lockstep.partitions with (security_barrier) as
select q.name as queue, p.name as partition, p.id as partition_id, p.created_at,
       lockstep.read_next_seq(p.id, 0) as first_seq, lockstep.read_last_seq(p.id) as last_seq,
       lockstep.read_stored(p.id) as messages,
       (select s.created_at from lockstep.read_first_run(p.id) r join lockstep.segment s on s.id = r.segment_id) as oldest_at,
       (select s.created_at from lockstep.run r join lockstep.segment s on s.id = r.segment_id
        where r.partition_id = p.id order by r.first_seq desc limit 1) as newest_at
from lockstep.queue q
cross join lateral (select p.* from lockstep.partition p where p.queue_id = q.id order by p.name) p
where lockstep.may_read(q.name);

-- What each group has not done in each partition, including partitions where its cursor does not exist yet. `lag`
-- includes messages in flight, which `in_flight` counts.
create or replace view lockstep.lag with (security_barrier) as
select q.name as queue, p.name as partition, g.name as group_name, g.mode,
       lockstep.read_done_upto(c) as acked, lockstep.read_last_seq(p.id) as last_seq,
       lockstep.read_behind(c) as lag, lockstep.read_held(c) as in_flight,
       (select s.created_at from lockstep.read_head_run(c) r cross join lateral (
           select s.created_at from lockstep.segment s where s.id = r.segment_id limit 1) s) as oldest_at,
       lockstep.read_due_again(c) as due_at, c.consumed_at
from lockstep.queue q
cross join lateral (select p.* from lockstep.partition p where p.queue_id = q.id order by p.name) p
cross join lateral (select c.* from lockstep.read_cursors(q.id, p.id) c order by c.group_id offset 0) c
join lockstep.consumer_group g on g.id = c.group_id
where lockstep.may_read(q.name);

create or replace view lockstep.groups with (security_barrier) as
select q.name as queue, g.name as group_name, g.mode, g.created_at,
       coalesce(s.mode, 'all') as subscription, s.from_at as subscription_from_at,
       (select coalesce(sum(lockstep.read_behind(c)), 0)::bigint
        from (select p.id from lockstep.partition p where p.queue_id = g.queue_id order by p.name) p
        cross join lateral (select c.* from lockstep.read_cursor(g, p.id) c offset 0) c) as lag,
       (select coalesce(sum(lockstep.read_held(c)), 0)::bigint
        from (select p.id from lockstep.partition p where p.queue_id = g.queue_id order by p.name) p
        cross join lateral (select c.* from lockstep.read_cursor(g, p.id) c offset 0) c) as in_flight
from lockstep.consumer_group g
join lockstep.queue q on q.id = g.queue_id
left join lockstep.subscription s on s.queue_id = g.queue_id and s.group_name = g.name
where lockstep.may_read(q.name);

-- Live leases: of a partition in an ordered group, of single messages in a shared group.
create or replace view lockstep.leases with (security_barrier) as
select t.* from (
select q.name as queue, p.name as partition, g.name as group_name, c.lease_id, c.acked + 1 as first_seq, c.lease_to as last_seq,
       c.attempts + 1 as attempt, c.leased_at, c.due_at as expires_at
from lockstep.queue q
cross join lateral (select p.* from lockstep.partition p where p.queue_id = q.id order by p.name) p
cross join lateral (select c.* from lockstep.cursor c where c.partition_id = p.id order by c.group_id offset 0) c
join lockstep.consumer_group g on g.id = c.group_id
where lockstep.may_read(q.name) and c.lease_id is not null and c.due_at > clock_timestamp()
union all
select q.name, p.name, g.name, d.lease_id, d.from_seq, d.to_seq, d.attempts + 1, d.leased_at, d.due_at
from lockstep.queue q
cross join lateral (select p.* from lockstep.partition p where p.queue_id = q.id order by p.name) p
cross join lateral (select d.* from lockstep.delivery d where d.partition_id = p.id order by d.group_id, d.from_seq offset 0) d
join lockstep.consumer_group g on g.id = d.group_id
where lockstep.may_read(q.name) and d.lease_id is not null and d.due_at > clock_timestamp()
) t;

-- Where a group is stuck. `stopped`: its attempts are used up, and the queue's on_exhausted is `stop`. `failing`: the
-- next message, or a message in flight of a shared group, has failed before. `lease expired`: nobody has popped since.
create or replace view lockstep.stuck_partitions with (security_barrier) as
select t.* from (
select q.name as queue, p.name as partition, g.name as group_name,
       case when c.due_at = 'infinity' then 'stopped'
            when c.lease_id is not null and c.due_at <= clock_timestamp() then 'lease expired'
            else 'failing' end as reason,
       c.attempts, lockstep.read_next_seq(c.partition_id, c.acked) as seq, c.due_at, lockstep.read_behind(c) as lag
from lockstep.queue q
cross join lateral (select p.* from lockstep.partition p where p.queue_id = q.id order by p.name) p
cross join lateral (select c.* from lockstep.cursor c where c.partition_id = p.id order by c.group_id offset 0) c
join lockstep.consumer_group g on g.id = c.group_id
where lockstep.may_read(q.name) and (c.due_at = 'infinity' or c.attempts > 0 or (c.lease_id is not null and c.due_at <= clock_timestamp()))
union all
select q.name, p.name, g.name,
       case when d.due_at = 'infinity' then 'stopped'
            when d.lease_id is not null and d.due_at <= clock_timestamp() then 'lease expired'
            else 'failing' end,
       d.attempts, d.from_seq, d.due_at, lockstep.read_behind(c)
from lockstep.queue q
cross join lateral (select p.* from lockstep.partition p where p.queue_id = q.id order by p.name) p
cross join lateral (select d.* from lockstep.delivery d where d.partition_id = p.id order by d.group_id, d.from_seq offset 0) d
join lockstep.cursor c on c.partition_id = p.id and c.group_id = d.group_id
join lockstep.consumer_group g on g.id = d.group_id
where lockstep.may_read(q.name) and (d.due_at = 'infinity' or d.attempts > 0 or (d.lease_id is not null and d.due_at <= clock_timestamp()))
) t;

-- Dead letters with their messages; `readable` as in lockstep.messages.
create or replace view lockstep.dead_letters with (security_barrier) as
select d.id, q.name as queue, p.name as partition, d.seq, d.group_name, d.attempts, d.error, d.failed_at,
       lockstep.message_id(s.uuid, (r.ordinal + d.seq - r.first_seq)::int) as message_id, s.created_at, s.codec = 0 as readable,
       lockstep.as_text(
           s.payloads[r.ordinal + d.seq - r.first_seq + 1], s.encodings[r.ordinal + d.seq - r.first_seq + 1]) as payload
from lockstep.queue q
-- A range, so that only the index that begins with the queue has this order.
cross join lateral (
    select d.* from lockstep.dead_letter d where d.queue_id between q.id and q.id order by d.queue_id, d.failed_at, d.id) d
join lockstep.partition p on p.id = d.partition_id
cross join lateral lockstep.read_run_of(d.partition_id, d.seq) r
join lockstep.segment s on s.id = r.segment_id
where lockstep.may_read(q.name);

comment on view lockstep.messages is 'Stored messages. What they hold is there if readable is true: the others are packed, and Lockstep''s clients and Spark read them.';
comment on column lockstep.messages.readable is 'Whether SQL can read the payload and the other fields of the message: not if its segment is compressed.';
comment on view lockstep.queues is 'Queues, with their main options and how much they hold.';
comment on view lockstep.partitions is 'Partitions of queues, with what is stored in them.';
comment on view lockstep.lag is 'What each group has before it in each partition.';
comment on view lockstep.groups is 'Consumer groups of queues, with what is before them.';
comment on view lockstep.leases is 'Live leases.';
comment on view lockstep.stuck_partitions is 'Partitions in which a group does not get on, and why.';
comment on view lockstep.dead_letters is 'Dead letters, with their messages as lockstep.messages shows them.';
