-- Ack: ends deliveries. core/rules.py (settle) defines what each status does to a cursor.
--
-- Guarantees: a stale lease changes nothing; a cursor that is left drained loses no wake-up.
-- Locks: partition rows (by id), then cursor rows (by partition and group). The partition row is needed only where the
-- cursor would be left drained: it is locked first, and a later statement checks for newer messages. If newer messages
-- were seen at first and have been cleared since, the cursor is left due without the lock, and the next pop checks.
-- Indexes: cursor_lease, cursor_pkey, run_pkey.

-- Completes everything that the given leases hold: the cheap form. One row per partition of a lease.
create or replace function lockstep.ack_leases(_lease_ids uuid[], _at timestamptz)
returns table (lease_id uuid, partition_id bigint, partition_name text, queue_name text, messages bigint, expired boolean, shared boolean) language plpgsql as $$
#variable_conflict use_column
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _locked bigint[];
    _found int;
    _leases uuid[];
    _partition_ids bigint[];
    _group_ids int[];
    _from bigint[];
    _to bigint[];
    _partition_names text[];
    _queue_names text[];
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.need_leases('{pop}', _lease_ids); end if;
    select array_agg(p.id) into _locked from (
        select p.id from lockstep.partition p
        where p.id in (
            select c.partition_id from lockstep.cursor c
            left join lateral (
                select r.last_seq from lockstep.run r
                where r.partition_id = c.partition_id and r.segment_id is not null order by r.first_seq desc limit 1
            ) l on true
            where c.lease_id = any (_lease_ids) and coalesce(l.last_seq, 0) <= c.lease_to
        )
        order by p.id for no key update
    ) p;
    with held as (
        select c.partition_id, c.group_id, c.acked, c.lease_id, c.due_at > _now as live from lockstep.cursor c
        where c.lease_id = any (_lease_ids)
        order by c.partition_id, c.group_id for no key update
    ), acked as (
        update lockstep.cursor c
        set acked = c.lease_to, attempts = 0, consumed_at = _now, lease_id = null, lease_to = null, leased_at = null,
            due_at = case
                when coalesce(l.last_seq, 0) <= c.lease_to then case when c.partition_id = any (_locked) then null else _now end
                when q.delay_seconds = 0 and q.window_seconds = 0 then _now
                else lockstep.due_at(c.partition_id, c.lease_to, q.delay_seconds, q.window_seconds, _now) end
        from held h
        join lockstep.consumer_group g on g.id = h.group_id
        join lockstep.queue q on q.id = g.queue_id
        join lockstep.partition p on p.id = h.partition_id
        left join lateral (
            select r.last_seq from lockstep.run r
            where r.partition_id = h.partition_id and r.segment_id is not null order by r.first_seq desc limit 1
        ) l on true
        where c.partition_id = h.partition_id and c.group_id = h.group_id and h.live
        returning h.lease_id, c.partition_id, c.group_id, h.acked as before, c.acked as after, p.name as partition_name, q.name as queue_name
    )
    select array_agg(t.lease_id), array_agg(t.partition_id), array_agg(t.group_id), array_agg(t.before), array_agg(t.after),
           array_agg(t.partition_name), array_agg(t.queue_name)
    into _leases, _partition_ids, _group_ids, _from, _to, _partition_names, _queue_names
    -- Expired leases are only held. A join of the two would compare each partition with every other.
    from (
        select t.lease_id, t.partition_id, t.group_id, t.before, coalesce(max(t.after), t.before) as after,
               max(t.partition_name) as partition_name, max(t.queue_name) as queue_name
        from (
            select a.* from acked a
            union all
            select h.lease_id, h.partition_id, h.group_id, h.acked, null, null, null from held h
        ) t
        group by t.lease_id, t.partition_id, t.group_id, t.before
        order by t.partition_id, t.group_id  -- an outcome names the first partition of its lease
    ) t;
    _found := (select count(distinct l.id) from unnest(_leases) l (id));
    if _found < cardinality(_lease_ids) then
        return query select c.* from lockstep.shared_complete(_lease_ids, _now, _group_ids, _partition_ids, _from, _to) c;
    elsif exists (  -- a later statement (depth.sql)
        select 1 from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id where g.id = any (_group_ids) and q.max_size > 0
    ) then
        perform lockstep.count_moves(_group_ids, _partition_ids, _from, _to);
    end if;
    if _leases is null then
        return;
    end if;
    return query
    select t.lease_id, t.partition_id, coalesce(t.partition_name, p.name), coalesce(t.queue_name, q.name), t.after - t.before,
           t.partition_name is null, false
    from unnest(_leases, _partition_ids, _partition_names, _queue_names, _from, _to)
        t (lease_id, partition_id, partition_name, queue_name, before, after)
    -- Only expired leases are looked up: a null is not searched for.
    left join lockstep.partition p on p.id = case when t.partition_name is null then t.partition_id end
    left join lockstep.queue q on q.id = p.queue_id;
end $$;

-- All other acks: by lease (no transaction id) or by message (partition and transaction id), with any status. One row
-- per item and cursor that it applies to; _error is an AckError or null.
create or replace function lockstep.ack_items(
    _lease_ids uuid[], _partition_ids bigint[], _seqs bigint[], _transaction_ids text[], _groups text[], _statuses text[], _errors text[],
    _retry_ats timestamptz[], _at timestamptz
) returns table (
    item int, error text, noop boolean, released boolean, dead boolean, messages bigint, queue_name text, partition_name text
) language plpgsql as $$
#variable_conflict use_column
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _items lockstep.ack_item[];
    _of_cursor lockstep.ack_item[];
    _row record;
    _group_ids int[];
    _moved bigint[];
    _from bigint[];
    _to bigint[];
    _rest int[];
    _locked bigint[];
    _shared bigint[];
    _unplaced bigint[];
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at] || _retry_ats), lockstep.need_leases('{pop}', _lease_ids, _partition_ids); end if;
    select array_agg(i order by i.partition_id, i.group_id, i.item) into _items
    from lockstep.expand_acks(_lease_ids, _partition_ids, _seqs, _transaction_ids, _groups, _statuses, _errors, _retry_ats) i;
    -- Items that concern no ordered group: a shared group, or no group.
    _rest := array(select i.item from unnest(_items) i where i.group_id is null);
    _locked := array(select i.partition_id from unnest(_items) i where i.group_id is not null);
    if _rest <> '{}' then
        _shared := lockstep.shared_partitions(_rest, _lease_ids, _partition_ids, _groups);
        -- The cursor of a shared group needs its partition lock only alongside others: a push may lock them in another
        -- order.
        if cardinality(_locked || _shared) > 1 then
            _locked := _locked || _shared;
        end if;
    end if;
    -- The message may be in a partition where its group has no cursor yet (group.sql).
    if exists (select 1 from lockstep.consumer_group g where g.placed_upto is not null) then
        _unplaced := array(
            select p.id from unnest(_partition_ids, _groups) t (id, group_name)
            join lockstep.partition p on p.id = t.id
            join lockstep.consumer_group g on g.queue_id = p.queue_id and g.name = t.group_name and g.placed_upto is not null);
        _locked := _locked || _unplaced;
    end if;
    perform 1 from lockstep.partition p where p.id = any (_locked) order by p.id for no key update;
    if _unplaced <> '{}' then
        perform lockstep.place(p.queue_id, null, array_agg(p.id)) from lockstep.partition p where p.id = any (_unplaced) group by p.queue_id;
    end if;
    -- Within a partition, groups die in the order in which the acks name them; their cursors have an order of their own.
    if exists (select 1 from unnest(_items) i where i.group_id <> _items[1].group_id) then
        perform 1 from lockstep.cursor c
        join (select distinct i.partition_id, i.group_id from unnest(_items) i) i on c.partition_id = i.partition_id and c.group_id = i.group_id
        order by c.partition_id, c.group_id for no key update of c;
    end if;
    for _of_cursor in
        select array_agg(i order by i.item) from unnest(_items) i where i.group_id is not null
        group by i.partition_id, i.group_id order by i.partition_id, min(i.item)
    loop
        for _row in select * from lockstep.settle_acks(_of_cursor, _now) loop
            return query select _row.item, _row.error, _row.noop, _row.released, _row.dead, _row.messages, _row.queue_name, _row.partition_name;
        end loop;
        if _row.moved_to > _row.moved_from then
            _group_ids := _group_ids || _of_cursor[1].group_id;
            _moved := _moved || _of_cursor[1].partition_id;
            _from := _from || _row.moved_from;
            _to := _to || _row.moved_to;
        end if;
    end loop;
    if _rest <> '{}' then
        for _row in
            select * from lockstep.shared_ack(
                _rest, _lease_ids, _partition_ids, _seqs, _transaction_ids, _groups, _statuses, _errors, _retry_ats, _now)
        loop
            return query select _row.item, _row.error, _row.noop, _row.released, _row.dead, _row.messages, _row.queue_name, _row.partition_name;
            if _row.done_upto is not null then
                _group_ids := _group_ids || _row.group_id;
                _moved := _moved || _row.partition_id;
                _from := _from || _row.done_after;
                _to := _to || _row.done_upto;
            end if;
        end loop;
    end if;
    -- All at once, because the counters must be locked in order as well.
    if _moved is not null then
        perform lockstep.count_moves(_group_ids, _moved, _from, _to);
    end if;
end $$;

-- Which cursor of an ordered group each item concerns. An item without a cursor has no group_id.
create or replace function lockstep.expand_acks(
    _lease_ids uuid[], _partition_ids bigint[], _seqs bigint[], _transaction_ids text[], _groups text[], _statuses text[], _errors text[],
    _retry_ats timestamptz[]
) returns setof lockstep.ack_item language sql stable as $$
    with given as (
        select t.* from unnest(_lease_ids, _partition_ids, _seqs, _transaction_ids, _groups, _statuses, _errors, _retry_ats)
            with ordinality t (lease_id, partition_id, seq, transaction_id, group_name, status, error, retry_at, item)
    ), by_lease as (
        select t.item, c.partition_id, c.group_id, t.seq, t.status, t.lease_id, t.error, true as by_lease, t.retry_at
        from given t join lockstep.cursor c on c.lease_id = t.lease_id and c.partition_id = coalesce(t.partition_id, c.partition_id)
        join lockstep.consumer_group g on g.id = c.group_id  -- leftovers of a deleted queue have no group
        where t.transaction_id is null and (
            -- Without its partition, a seq is ambiguous if the lease has several partitions.
            t.seq is null or t.partition_id is not null or 1 = (select count(*) from lockstep.cursor o where o.lease_id = t.lease_id))
    ), by_message as (
        select t.item, t.partition_id, g.id, lockstep.resolve_seq(t.partition_id, t.transaction_id), t.status, t.lease_id, t.error, false, t.retry_at
        from given t
        cross join lateral (select p.queue_id from lockstep.partition p where p.id = t.partition_id limit 1) p
        join lockstep.consumer_group g on g.queue_id = p.queue_id and g.name = t.group_name and g.mode = 'ordered'
        where t.transaction_id is not null
    ), found as (select * from by_lease union all select * from by_message)
    select f.item::int, f.partition_id, f.group_id, f.seq, f.status, f.lease_id, f.error, f.by_lease, f.retry_at from found f
    union all
    select t.item::int, null, null, null, t.status, t.lease_id, t.error, t.transaction_id is null, t.retry_at
    from given t where not exists (select 1 from found f where f.item = t.item)
$$;

-- Applies the acks that one call has for one cursor, in seq order (rules.settle). The partition row is locked.
create or replace function lockstep.settle_acks(_items lockstep.ack_item[], _now timestamptz) returns table (
    item int, error text, noop boolean, released boolean, dead boolean, messages bigint, queue_name text, partition_name text,
    moved_from bigint, moved_to bigint
) language plpgsql as $$
#variable_conflict use_column
declare
    _partition_id bigint := _items[1].partition_id;
    _group_id int := _items[1].group_id;
    _held lockstep.cursor;
    _queue lockstep.queue;
    _group_name text;
    _item lockstep.ack_item;
    _live boolean;
    _acked bigint;
    _attempts int;
    _clamped boolean := false;
    _released boolean := false;
    _stopped boolean := false;
    _not_before timestamptz := _now;
    _outcomes lockstep.ack_outcome[] := '{}';
begin
    select c.* into _held from lockstep.cursor c where c.partition_id = _partition_id and c.group_id = _group_id for no key update;
    select q.* into _queue from lockstep.consumer_group g join lockstep.queue q on q.id = g.queue_id where g.id = _group_id;
    if not found then  -- just deleted or moved
        return query
        select i.item, case when i.by_lease or i.lease_id is not null then 'lease_lost' else 'unresolvable' end, false, false, false, 0::bigint,
               null::text, null::text, null::bigint, null::bigint
        from unnest(_items) i;
        return;
    end if;
    select g.name into _group_name from lockstep.consumer_group g where g.id = _group_id;
    _live := _held.lease_id is not null and _held.due_at > _now;
    _acked := _held.acked;
    _attempts := _held.attempts;
    for _item in
        select i.item, i.partition_id, i.group_id,
               case when not i.by_lease or i.seq is not null then i.seq
                    when i.status = 'completed' then _held.lease_to
                    else coalesce(lockstep.next_seq(_partition_id, _held.acked), _held.lease_to) end as seq,
               i.status, i.lease_id, i.error, i.by_lease, i.retry_at
        from unnest(_items) i order by 4 nulls first, 1
    loop
        if _item.seq is null and not _item.by_lease then
            _outcomes := _outcomes || (_item.item, 'unresolvable', false, false, 0)::lockstep.ack_outcome;
        elsif _item.lease_id is not null and (not _live or _held.lease_id <> _item.lease_id or _item.seq > _held.lease_to) then
            _outcomes := _outcomes || (_item.item, 'lease_lost', false, false, 0)::lockstep.ack_outcome;
        elsif _clamped then
            _outcomes := _outcomes
                || (_item.item, case when not lockstep.redelivers(_item.status) then 'clamped' end, false, false, 0)::lockstep.ack_outcome;
        elsif _item.seq <= _acked then
            _outcomes := _outcomes || (_item.item, case when _item.status <> 'completed' then 'committed' end,
                _item.status = 'completed', false, 0)::lockstep.ack_outcome;
        elsif _item.status = 'completed' then
            _outcomes := _outcomes || (_item.item, null, false, false, _item.seq - _acked)::lockstep.ack_outcome;
            _acked := _item.seq;
            _attempts := 0;
        elsif lockstep.redelivers(_item.status) and not lockstep.charges(_item.status, false) then
            _outcomes := _outcomes || (_item.item, null, false, false, 0)::lockstep.ack_outcome;
            _released := true;
            _clamped := true;
            _not_before := greatest(_now, _item.retry_at);
        else
            _released := true;
            _attempts := lockstep.charged(_attempts);
            if lockstep.redelivers(_item.status) and (not lockstep.exhausted(_attempts, _queue) or _queue.on_exhausted = 'stop') then
                _stopped := lockstep.exhausted(_attempts, _queue);
                _not_before := case
                    when _item.retry_at is null and lockstep.delays(_item.status) then _now + lockstep.retry_delay(_queue, _attempts)
                    else greatest(_now, _item.retry_at) end;
                _clamped := true;
                _outcomes := _outcomes || (_item.item, null, false, false, 0)::lockstep.ack_outcome;
            else
                if not lockstep.redelivers(_item.status) or _queue.on_exhausted = 'dead' then
                    insert into lockstep.dead_letter (queue_id, partition_id, seq, group_name, attempts, error, failed_at)
                    values (_queue.id, _partition_id, _item.seq, _group_name, _attempts, _item.error, _now);
                end if;
                _outcomes := _outcomes
                    || (_item.item, null, false, not lockstep.redelivers(_item.status) or _queue.on_exhausted = 'dead', 0)::lockstep.ack_outcome;
                _acked := _item.seq;
                _attempts := 0;
            end if;
        end if;
    end loop;
    _released := _released or coalesce(_acked >= _held.lease_to, false);
    if _released or _acked > _held.acked then
        update lockstep.cursor c
        set acked = _acked, attempts = _attempts,
            consumed_at = case when _acked > c.acked then _now else c.consumed_at end,
            lease_id = case when not _released then c.lease_id end,
            lease_to = case when not _released then c.lease_to end,
            leased_at = case when not _released then c.leased_at end,
            due_at = case
                when _stopped then 'infinity'
                when not _released and c.lease_id is not null then c.due_at
                else lockstep.due_at(_partition_id, _acked, _queue.delay_seconds, _queue.window_seconds, _not_before) end
        where c.partition_id = _partition_id and c.group_id = _group_id;
    end if;
    return query
    select o.item, o.error, o.noop, _released and o.error is null, o.dead, o.messages, _queue.name,
           (select p.name from lockstep.partition p where p.id = _partition_id), _held.acked, _acked
    from unnest(_outcomes) o;
end $$;

-- The number of failed deliveries plus one, capped so that the next is still an integer (policy.charged).
create or replace function lockstep.charged(_attempts int) returns int language sql immutable parallel safe as $$
    select least(_attempts, 2147483645) + 1
$$;

-- Whether a message is not delivered again after its _attempts-th failure; -1 means no limit (policy.exhausted).
create or replace function lockstep.exhausted(_attempts int, _queue lockstep.queue) returns boolean language sql immutable parallel safe as $$
    select _queue.retry_limit <> -1 and _attempts > _queue.retry_limit
$$;

-- How long a message waits after its _attempts-th failure (policy.retry_delay).
create or replace function lockstep.retry_delay(_queue lockstep.queue, _attempts int) returns interval language sql immutable as $$
    select least(
        _queue.retry_delay_ms * case
            when _queue.retry_backoff > 1 then power(_queue.retry_backoff, least(_attempts - 1, 1000, 15 / log(_queue.retry_backoff)))
            else 1 end,
        greatest(_queue.retry_delay_ms_max, _queue.retry_delay_ms)
    ) * interval '1 ms'
$$;

-- Extends the deadlines of live leases; never shortens them. If _milliseconds[i] is null, the queue's lease time
-- applies.
create or replace function lockstep.renew(_lease_ids uuid[], _milliseconds bigint[], _at timestamptz)
returns table (lease_id uuid, partitions bigint, expires_at timestamptz) language plpgsql as $$
#variable_conflict use_column
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.check_spans(_milliseconds), lockstep.need_leases('{pop}', _lease_ids); end if;
    -- First, because this locks partitions.
    if exists (select 1 from lockstep.delivery d where d.lease_id = any (_lease_ids)) then
        return query select r.* from lockstep.shared_renew(_lease_ids, _milliseconds, _now) r;
    end if;
    return query
    with held as (
        select c.partition_id, c.group_id, t.milliseconds, t.by_queue
        from lockstep.cursor c
        join (
            select t.lease_id, max(t.milliseconds) as milliseconds, bool_or(t.milliseconds is null) as by_queue
            from unnest(_lease_ids, _milliseconds) t (lease_id, milliseconds) group by t.lease_id
        ) t on c.lease_id = t.lease_id
        where c.due_at > _now
        order by c.partition_id, c.group_id for no key update of c
    ), renewed as (
        update lockstep.cursor c
        set due_at = greatest(
            c.due_at, _now + h.milliseconds * interval '1 ms', case when h.by_queue then _now + make_interval(secs => q.lease_seconds) end)
        from held h join lockstep.consumer_group g on g.id = h.group_id join lockstep.queue q on q.id = g.queue_id
        where c.partition_id = h.partition_id and c.group_id = h.group_id
        returning c.lease_id, c.due_at
    )
    select r.lease_id, count(*), min(r.due_at) from renewed r group by r.lease_id;
end $$;

-- What the statuses of an ack do (core/endings.py, where each is explained). 'completed' does what none of these say; one that
-- neither completes nor redelivers gives the message up.
create or replace function lockstep.redelivers(_status text) returns boolean language sql immutable parallel safe as $$
    select _status in ('failed', 'retry', 'released')
$$;

-- Whether it uses up one of the attempts, in a shared group or in an ordered one.
create or replace function lockstep.charges(_status text, _shared boolean) returns boolean language sql immutable parallel safe as $$
    select _status in ('failed', 'dlq') or (_shared and _status = 'retry')
$$;

-- Whether the message is delivered again after the queue's retry delay, and not at once.
create or replace function lockstep.delays(_status text) returns boolean language sql immutable parallel safe as $$
    select _status = 'failed'
$$;
