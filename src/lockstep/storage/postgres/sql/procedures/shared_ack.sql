-- Ack and renew of shared groups. core/shared.py (settle) defines what each status does to a message.
--
-- Guarantees: a stale lease changes nothing; messages do not affect each other; a message that is done leaves no row.
-- Locks: see shared_places.sql. The cursor says what is new and when it is due, and acks do not change that. The
-- partition is therefore locked only to keep the lock order when several cursors are held: a push holds it while it
-- wakes them.
-- Indexes: delivery_lease, delivery_pkey, cursor_pkey.

-- Completes everything that the given leases hold: the cheap form. One row per partition of a lease. Moves of ordered
-- groups in the same call, if any, are counted along with its own: the counters must be locked in order.
create or replace function lockstep.shared_complete(
    _lease_ids uuid[], _at timestamptz, _also_group_ids int[] default null, _also_partition_ids bigint[] default null,
    _also_from bigint[] default null, _also_to bigint[] default null
) returns table (lease_id uuid, partition_id bigint, partition_name text, queue_name text, messages bigint, expired boolean, shared boolean) language plpgsql as $$
#variable_conflict use_column
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _leases uuid[];
    _partition_ids bigint[];
    _group_ids int[];
    _from bigint[];
    _to bigint[];
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.need_leases('{pop}', _lease_ids); end if;
    -- `is true`: otherwise the planner may read the whole index on due times for the few ranges of a lease.
    loop
        perform 1 from lockstep.delivery d where d.lease_id = any (_lease_ids) and (d.due_at > _now) is true
        order by d.partition_id, d.group_id, d.from_seq for update;
        with ended as (
            -- Leftovers of a deleted or moved group count as lost. A look-up per row rather than a join.
            delete from lockstep.delivery d
            where d.lease_id = any (_lease_ids) and (d.due_at > _now) is true
              and (select true from lockstep.consumer_group g where g.id = d.group_id)
            returning d.*
        )
        select array_agg(e.lease_id), array_agg(e.partition_id), array_agg(e.group_id), array_agg(e.from_seq), array_agg(e.to_seq)
        into _leases, _partition_ids, _group_ids, _from, _to from ended e;
        if exists (
            select 1 from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id
            where g.id = any (_group_ids || _also_group_ids) and q.max_size > 0
        ) then
            perform lockstep.count_moves(
                _group_ids || _also_group_ids, _partition_ids || _also_partition_ids,
                array(select f - 1 from unnest(_from) f) || _also_from, _to || _also_to);
            _also_group_ids := null;
            _also_partition_ids := null;
            _also_from := null;
            _also_to := null;
        end if;
        return query
        select t.lease_id, t.partition_id, p.name, q.name, sum(t.to_seq - t.from_seq + 1)::bigint, false, true
        from unnest(_leases, _partition_ids, _from, _to) t (lease_id, partition_id, from_seq, to_seq)
        join lockstep.partition p on p.id = t.partition_id join lockstep.queue q on q.id = p.queue_id
        group by t.lease_id, t.partition_id, p.name, q.name
        order by t.partition_id;
        -- A transaction that split a range of these leases in the meantime has left parts that the statement above
        -- could not see.
        exit when not exists (
            select 1 from lockstep.delivery d
            where d.lease_id = any (_lease_ids) and (d.due_at > _now) is true
              and (select true from lockstep.consumer_group g where g.id = d.group_id));
    end loop;
    return query
    select distinct d.lease_id, d.partition_id, null::text, null::text, 0::bigint, true, true
    from lockstep.delivery d where d.lease_id = any (_lease_ids);
end $$;

-- Acks of any form and status: those of the given arrays whose numbers are in _items. One row per item and cursor that
-- it applies to; for done messages with their seqs, which the caller counts.
create or replace function lockstep.shared_ack(
    _items int[], _lease_ids uuid[], _partition_ids bigint[], _seqs bigint[], _transaction_ids text[], _groups text[], _statuses text[], _errors text[],
    _retry_ats timestamptz[], _now timestamptz
) returns table (
    item int, error text, noop boolean, released boolean, dead boolean, messages bigint, queue_name text, partition_name text,
    group_id int, partition_id bigint, done_after bigint, done_upto bigint
) language plpgsql as $$
#variable_conflict use_column
declare
    _found lockstep.ack_item[];
    _of_cursor lockstep.ack_item[];
begin
    select array_agg(i order by i.partition_id, i.group_id, i.item) into _found
    from lockstep.shared_expand(_items, _lease_ids, _partition_ids, _seqs, _transaction_ids, _groups, _statuses, _errors, _retry_ats) i;
    perform 1 from lockstep.cursor c
    join (select distinct i.partition_id, i.group_id from unnest(_found) i) i on c.partition_id = i.partition_id and c.group_id = i.group_id
    order by c.partition_id, c.group_id for no key update of c;
    return query
    select i.item, i.error, false, false, false, 0::bigint, null::text, null::text, null::int, null::bigint, null::bigint, null::bigint
    from unnest(_found) i where i.group_id is null;
    for _of_cursor in
        select array_agg(i order by i.item) from unnest(_found) i where i.group_id is not null
        group by i.partition_id, i.group_id order by i.partition_id, min(i.item)
    loop
        return query select s.* from lockstep.shared_settle(_of_cursor, _now) s;
    end loop;
end $$;

-- The partitions that items concern, one for each cursor.
create or replace function lockstep.shared_partitions(_items int[], _lease_ids uuid[], _partition_ids bigint[], _groups text[]) returns bigint[] language sql stable as $$
    with given as (
        select t.* from unnest(_lease_ids, _partition_ids, _groups) with ordinality t (lease_id, partition_id, group_name, item) where t.item = any (_items)
    )
    select coalesce(array_agg(t.partition_id), '{}')
    from (
        select t.partition_id, t.group_name from given t where t.partition_id is not null
        union
        select d.partition_id, d.group_id::text from lockstep.delivery d
        where d.lease_id in (select t.lease_id from given t where t.partition_id is null)
    ) t
$$;

-- Which cursor each item concerns. An item without a cursor has no group_id but an error.
create or replace function lockstep.shared_expand(
    _items int[], _lease_ids uuid[], _partition_ids bigint[], _seqs bigint[], _transaction_ids text[], _groups text[], _statuses text[], _errors text[],
    _retry_ats timestamptz[]
) returns setof lockstep.ack_item language sql stable as $$
    with given as (
        select t.* from unnest(_lease_ids, _partition_ids, _seqs, _transaction_ids, _groups, _statuses, _errors, _retry_ats)
            with ordinality t (lease_id, partition_id, seq, transaction_id, group_name, status, error, retry_at, item)
        where t.item = any (_items)
    ), holder as (
        select distinct d.lease_id, d.partition_id, d.group_id from lockstep.delivery d
        join lockstep.consumer_group g on g.id = d.group_id  -- leftovers of a deleted queue have no group
        where d.lease_id = any (_lease_ids)
    ), by_lease as (
        select t.item, h.partition_id, h.group_id, t.seq, t.status, t.lease_id, t.error, true as by_lease, t.retry_at
        from given t join holder h on h.lease_id = t.lease_id and h.partition_id = coalesce(t.partition_id, h.partition_id)
        where t.transaction_id is null and (
            -- Without its partition, a seq is ambiguous if the lease has several partitions.
            t.seq is null or t.partition_id is not null or 1 = (select count(*) from holder o where o.lease_id = t.lease_id))
    ), by_message as (
        select t.item, t.partition_id, g.id, lockstep.resolve_seq(t.partition_id, t.transaction_id), t.status, t.lease_id, t.error, false, t.retry_at
        from given t
        cross join lateral (select p.queue_id from lockstep.partition p where p.id = t.partition_id limit 1) p
        join lockstep.consumer_group g on g.queue_id = p.queue_id and g.name = t.group_name and g.mode = 'shared'
        where t.transaction_id is not null
    ), found as (select * from by_lease union all select * from by_message)
    select f.item::int, f.partition_id, f.group_id, f.seq, f.status, f.lease_id, f.error, f.by_lease, f.retry_at from found f
    union all
    select t.item::int, null, null, null, t.status, t.lease_id,
           case
               when t.partition_id is not null and not exists (
                   select 1 from lockstep.partition p join lockstep.queue q on q.id = p.queue_id where p.id = t.partition_id) then 'unresolvable'
               when t.transaction_id is not null and t.lease_id is null then 'unresolvable'
               when t.partition_id is null and exists (select 1 from holder o where o.lease_id = t.lease_id) then 'unresolvable'
               when t.partition_id is null and exists (
                   select 1 from lockstep.cursor o join lockstep.consumer_group g on g.id = o.group_id where o.lease_id = t.lease_id) then 'unresolvable'
               else 'lease_lost' end,
           t.transaction_id is null, null
    from given t where not exists (select 1 from found f where f.item = t.item)
$$;

-- Applies the acks that one call has for one locked cursor: first those of single messages, then those of whole leases.
create or replace function lockstep.shared_settle(_items lockstep.ack_item[], _now timestamptz) returns table (
    item int, error text, noop boolean, released boolean, dead boolean, messages bigint, queue_name text, partition_name text,
    group_id int, partition_id bigint, done_after bigint, done_upto bigint
) language plpgsql as $$
#variable_conflict use_column
declare
    _partition_id bigint := _items[1].partition_id;
    _group_id int := _items[1].group_id;
    _queue lockstep.queue;
    _partition_name text;
    _live uuid[];
    _ends lockstep.shared_end[];
    _item lockstep.ack_item;
    _held lockstep.delivery[];
begin
    select q.* into _queue from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id where g.id = _group_id;
    select p.name into _partition_name from lockstep.partition p where p.id = _partition_id;
    perform 1 from lockstep.delivery d
    where d.partition_id = _partition_id and d.group_id = _group_id
      and exists (select 1 from unnest(_items) i where i.lease_id = d.lease_id or i.seq between d.from_seq and d.to_seq)
    order by d.from_seq for update;
    _live := array(
        select distinct d.lease_id from lockstep.delivery d
        where d.partition_id = _partition_id and d.group_id = _group_id and d.due_at > _now
          and d.lease_id = any (array(select i.lease_id from unnest(_items) i)));
    _ends := lockstep.shared_ends(_items, _live, _queue, _now);
    if _ends is not null then
        perform lockstep.shared_apply(_partition_id, _group_id, _ends, _queue, _now);
        return query
        select e.item, e.error, e.noop, e.applied and e.again_at is not null, e.applied and e.recorded, (e.applied and e.completed)::int::bigint,
               _queue.name, _partition_name, _group_id, _partition_id,
               case when e.applied and e.again_at is null then e.seq - 1 end, case when e.applied and e.again_at is null then e.seq end
        from unnest(_ends) e;
    end if;
    for _item in select i.* from unnest(_items) i where i.by_lease and i.seq is null order by i.item loop
        if _item.lease_id <> all (_live) then
            return query select _item.item, 'lease_lost', false, false, false, 0::bigint, _queue.name, _partition_name, null::int, null::bigint, null::bigint, null::bigint;
            continue;
        end if;
        with held as (
            delete from lockstep.delivery d
            where d.partition_id = _partition_id and d.group_id = _group_id and d.lease_id = _item.lease_id returning d.*
        )
        select array_agg(h::lockstep.delivery) into _held from held h;
        if _held is null then
            return query select _item.item, null::text, true, false, false, 0::bigint, _queue.name, _partition_name, null::int, null::bigint, null::bigint, null::bigint;
            continue;
        end if;
        return query
        select _item.item, null::text, false, e.again_at is not null, e.recorded, case when e.completed then e.to_seq - e.from_seq + 1 else 0 end,
               _queue.name, _partition_name, _group_id, _partition_id,
               case when e.again_at is null then e.from_seq - 1 end, case when e.again_at is null then e.to_seq end
        from lockstep.shared_end_ranges(_held, _item, _queue, _now) e;
    end loop;
end $$;

-- How a delivery ends that has failed _attempts times before: when it is retried, null if never (shared._fate).
create or replace function lockstep.shared_fate(
    _status text, _retry_at timestamptz, _attempts int, _queue lockstep.queue, _now timestamptz,
    out again_at timestamptz, out attempts int, out died boolean, out recorded boolean
) language sql stable as $$
    select t.again_at, t.attempts, t.again_at is null and _status <> 'completed',
           t.again_at is null and _status <> 'completed' and (not lockstep.redelivers(_status) or _queue.on_exhausted = 'dead')
    from (
        select case
                   when not lockstep.redelivers(_status) then null
                   when not lockstep.charges(_status, true) then _now
                   when not lockstep.exhausted(lockstep.charged(_attempts), _queue) then
                       case when lockstep.delays(_status) and _retry_at is null then _now + lockstep.retry_delay(_queue, lockstep.charged(_attempts))
                            else greatest(_now, _retry_at) end
                   when _queue.on_exhausted = 'stop' then 'infinity'::timestamptz end as again_at,
               case when lockstep.charges(_status, true) then lockstep.charged(_attempts) else _attempts end as attempts
    ) t
$$;

-- The error of the dead letter that an ack makes (shared._reason).
create or replace function lockstep.shared_reason(_item lockstep.ack_item) returns text language sql immutable as $$
    select coalesce(_item.error, case when lockstep.redelivers(_item.status) and not lockstep.delays(_item.status) then 'retried too often' end)
$$;

-- The results of acks of single messages. Each message ends once, by the first valid ack.
create or replace function lockstep.shared_ends(_items lockstep.ack_item[], _live uuid[], _queue lockstep.queue, _now timestamptz)
returns lockstep.shared_end[] language sql stable as $$
    with single as (
        select i.item, i.seq, i.status, lockstep.shared_reason(i) as reason, i.retry_at, d.from_seq, d.attempts,
               case
                   when i.seq is null then 'unresolvable'
                   when d.from_seq is null and (i.seq > c.acked or (i.lease_id is not null and i.lease_id <> all (_live))) then 'lease_lost'
                   when d.from_seq is not null and i.lease_id is not null and (d.lease_id is distinct from i.lease_id or d.due_at <= _now) then 'lease_lost'
               end as refusal
        from unnest(_items) i
        left join lockstep.cursor c on c.partition_id = i.partition_id and c.group_id = i.group_id
        left join lateral (
            select d.* from lockstep.delivery d
            where d.partition_id = i.partition_id and d.group_id = i.group_id and d.from_seq <= i.seq order by d.from_seq desc limit 1
        ) d on d.to_seq >= i.seq
        where not (i.by_lease and i.seq is null)
    ), turned as (
        select s.*, row_number() over (partition by s.seq, s.refusal is null order by s.item) as turn from single s
    ), fated as (
        select t.*, f.again_at, f.attempts as tried, f.died, f.recorded,
               first_value(f.again_at) over (partition by t.seq, t.refusal is null order by t.item) as ended_at
        from turned t
        cross join lateral lockstep.shared_fate(t.status, t.retry_at, coalesce(t.attempts, 0), _queue, _now) f
    )
    select array_agg(row(
        f.item, f.seq,
        case
            when f.refusal is not null then f.refusal
            when f.from_seq is null and f.status <> 'completed' then 'committed'
            when f.from_seq is null or f.turn = 1 then null
            when f.ended_at is not null then 'lease_lost'
            when f.status <> 'completed' then 'committed' end,
        f.refusal is null and f.status = 'completed' and (f.from_seq is null or (f.turn > 1 and f.ended_at is null)),
        f.refusal is null and f.from_seq is not null and f.turn = 1,
        f.again_at, f.tried, f.died, f.recorded, f.reason, f.status = 'completed', f.from_seq
    )::lockstep.shared_end order by f.item)
    from fated f
$$;

-- Takes the messages that ended out of their ranges, and puts back those to be delivered again: neighbours with the
-- same state share a range.
create or replace function lockstep.shared_apply(
    _partition_id bigint, _group_id int, _ends lockstep.shared_end[], _queue lockstep.queue, _now timestamptz
) returns void language plpgsql as $$
declare
    _cut lockstep.delivery[];
begin
    with cut as (
        delete from lockstep.delivery d
        where d.partition_id = _partition_id and d.group_id = _group_id
          and d.from_seq = any (array(select e.from_seq from unnest(_ends) e where e.applied)) returning d.*
    )
    select array_agg(c::lockstep.delivery) into _cut from cut c;
    insert into lockstep.delivery (partition_id, group_id, from_seq, to_seq, lease_id, leased_at, due_at, attempts)
    select _partition_id, _group_id, t.from_seq, t.to_seq, c.lease_id, c.leased_at, c.due_at, c.attempts
    from unnest(_cut) c
    cross join lateral lockstep.range_without(
        c.from_seq, c.to_seq, array(select e.seq from unnest(_ends) e where e.applied and e.from_seq = c.from_seq)) t
    union all
    select _partition_id, _group_id, min(t.seq), max(t.seq), null, null, t.again_at, t.attempts
    from (
        select e.seq, e.again_at, e.attempts, e.seq - row_number() over (partition by e.again_at, e.attempts order by e.seq) as island
        from unnest(_ends) e where e.applied and e.again_at is not null
    ) t
    group by t.again_at, t.attempts, t.island;
    perform lockstep.shared_deaths(_queue.id, _group_id, _partition_id, t.seq, t.seq, t.attempts, t.reason, _now)
    from (select e.* from unnest(_ends) e where e.applied and e.died and e.recorded order by e.seq) t;
end $$;

-- Ends ranges of a lease that have already been taken out; puts back those to be delivered again.
create or replace function lockstep.shared_end_ranges(_held lockstep.delivery[], _item lockstep.ack_item, _queue lockstep.queue, _now timestamptz)
returns table (from_seq bigint, to_seq bigint, again_at timestamptz, recorded boolean, completed boolean) language plpgsql as $$
#variable_conflict use_column
begin
    insert into lockstep.delivery (partition_id, group_id, from_seq, to_seq, due_at, attempts)
    select h.partition_id, h.group_id, h.from_seq, h.to_seq, f.again_at, f.attempts
    from unnest(_held) h cross join lateral lockstep.shared_fate(_item.status, _item.retry_at, h.attempts, _queue, _now) f
    where f.again_at is not null;
    perform lockstep.shared_deaths(_queue.id, t.group_id, t.partition_id, t.from_seq, t.to_seq, t.attempts, lockstep.shared_reason(_item), _now)
    from (
        select h.group_id, h.partition_id, h.from_seq, h.to_seq, f.attempts
        from unnest(_held) h cross join lateral lockstep.shared_fate(_item.status, _item.retry_at, h.attempts, _queue, _now) f
        where f.died and f.recorded order by h.from_seq
    ) t;
    return query
    select h.from_seq, h.to_seq, f.again_at, f.recorded, _item.status = 'completed'
    from unnest(_held) h cross join lateral lockstep.shared_fate(_item.status, _item.retry_at, h.attempts, _queue, _now) f
    order by h.from_seq;
end $$;

-- Extends the deadlines of live leases, as lockstep.renew does for ordered groups. Locks the cursors, because a range
-- that is split in the meantime would be renewed only in part.
create or replace function lockstep.shared_renew(_lease_ids uuid[], _milliseconds bigint[], _now timestamptz)
returns table (lease_id uuid, partitions bigint, expires_at timestamptz) language plpgsql as $$
#variable_conflict use_column
begin
    perform 1 from lockstep.partition p
    where p.id in (select d.partition_id from lockstep.delivery d where d.lease_id = any (_lease_ids)) order by p.id for no key update;
    -- Including those that ordered groups have under these leases: they are renewed after this.
    perform 1 from lockstep.cursor c
    join (
        select d.partition_id, d.group_id from lockstep.delivery d where d.lease_id = any (_lease_ids)
        union
        select k.partition_id, k.group_id from lockstep.cursor k where k.lease_id = any (_lease_ids)
    ) t on c.partition_id = t.partition_id and c.group_id = t.group_id
    order by c.partition_id, c.group_id for no key update of c;
    perform 1 from lockstep.delivery d where d.lease_id = any (_lease_ids) and d.due_at > _now
    order by d.partition_id, d.group_id, d.from_seq for no key update;
    return query
    with renewed as (
        update lockstep.delivery d
        set due_at = greatest(d.due_at, (
            select max(_now + coalesce(t.milliseconds * interval '1 ms', make_interval(secs => q.lease_seconds)))
            from unnest(_lease_ids, _milliseconds) t (lease_id, milliseconds)
            cross join (
                select q.lease_seconds from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id where g.id = d.group_id
            ) q
            where t.lease_id = d.lease_id
        ))
        where d.lease_id = any (_lease_ids) and d.due_at > _now and lockstep.is_group(d.group_id)
        returning d.lease_id, d.partition_id, d.due_at
    )
    select r.lease_id, count(distinct r.partition_id), min(r.due_at) from renewed r group by r.lease_id;
end $$;
