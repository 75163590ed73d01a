-- Messages in flight of a shared group (core/shared.py). For an ordered group each function finds nothing, with one
-- probe.
--
-- Locks, for all changes of lockstep.delivery: transactions that create, split, move or remove ranges hold the cursor
-- row: pops, acks of single messages, renewals, and commands that move cursors. Only acks that end whole leases hold
-- nothing but the rows of these; a transaction that holds the cursor therefore locks the rows as well before it reads
-- them. Order: partition rows, cursor rows, delivery rows (by partition, group and seq).
-- Indexes: delivery_pkey; delivery_due finds due ranges, delivery_lease those of a lease.

-- Whether the group exists: leftovers of a deleted or moved group do not count.
create or replace function lockstep.is_group(_group_id int) returns boolean language sql stable as $$
    select exists (select 1 from lockstep.consumer_group g where g.id = _group_id)
$$;

-- The number of stored messages with a seq in (_after, _upto], including the part before the start of what is stored,
-- where no run holds the place of removed messages.
create or replace function lockstep.still_stored(_partition_id bigint, _after bigint, _upto bigint) returns bigint language sql stable as $$
    select lockstep.stored_between(_partition_id, greatest(_after, lockstep.start_of(_partition_id)), _upto)
$$;

-- The seq up to which everything is done: the low-water mark of a shared group, the cursor of an ordered one.
create or replace function lockstep.done_upto(_partition_id bigint, _group_id int, _acked bigint) returns bigint language sql stable as $$
    select coalesce((
        select d.from_seq - 1 from lockstep.delivery d
        where d.partition_id = _partition_id and d.group_id = _group_id order by d.from_seq limit 1
    ), _acked)
$$;

-- Stored messages in flight: all, or only those under a live lease.
create or replace function lockstep.in_flight(_partition_id bigint, _group_id int, _leased_only boolean, _now timestamptz) returns bigint language sql stable as $$
    select coalesce(sum(lockstep.still_stored(d.partition_id, d.from_seq - 1, d.to_seq)), 0)::bigint
    from lockstep.delivery d
    where d.partition_id = _partition_id and d.group_id = _group_id and (not _leased_only or (d.lease_id is not null and d.due_at > _now))
$$;

-- The exact lag of any cursor: messages ahead of it and messages in flight.
create or replace function lockstep.behind(_cursor lockstep.cursor) returns bigint language sql stable as $$
    select lockstep.lag(_cursor.partition_id, _cursor.acked) + lockstep.in_flight(_cursor.partition_id, _cursor.group_id, false, null)
$$;

-- How many seqs any cursor has done or passed in total.
create or replace function lockstep.passed(_cursor lockstep.cursor) returns bigint language sql stable as $$
    select _cursor.acked - coalesce((
        select sum(d.to_seq - d.from_seq + 1) from lockstep.delivery d
        where d.partition_id = _cursor.partition_id and d.group_id = _cursor.group_id), 0)::bigint
$$;

-- Stored messages of any cursor under a live lease.
create or replace function lockstep.held(_cursor lockstep.cursor, _now timestamptz) returns bigint language sql stable as $$
    select case when _cursor.lease_id is not null and _cursor.due_at > _now
                then lockstep.stored_between(_cursor.partition_id, _cursor.acked, _cursor.lease_to) else 0 end
         + lockstep.in_flight(_cursor.partition_id, _cursor.group_id, true, _now)
$$;

-- Whether any cursor has a live lease, even of messages that were removed.
create or replace function lockstep.is_leased(_cursor lockstep.cursor, _now timestamptz) returns boolean language sql stable as $$
    select (_cursor.lease_id is not null and _cursor.due_at > _now) or exists (
        select 1 from lockstep.delivery d
        where d.partition_id = _cursor.partition_id and d.group_id = _cursor.group_id and d.lease_id is not null and d.due_at > _now)
$$;

-- The run of the first stored message that is not done; no row if all are done.
create or replace function lockstep.head_run(_cursor lockstep.cursor) returns setof lockstep.run language sql stable as $$
    select r.* from lockstep.next_run(_cursor.partition_id, coalesce((
        select d.from_seq - 1 from lockstep.delivery d
        where d.partition_id = _cursor.partition_id and d.group_id = _cursor.group_id
          and lockstep.still_stored(d.partition_id, d.from_seq - 1, d.to_seq) > 0
        order by d.from_seq limit 1
    ), _cursor.acked)) r
$$;

-- When a pop may find a message, new or redelivered; null if never.
create or replace function lockstep.due_again(_cursor lockstep.cursor) returns timestamptz language sql stable as $$
    select least(_cursor.due_at, (
        select min(d.due_at) from lockstep.delivery d where d.partition_id = _cursor.partition_id and d.group_id = _cursor.group_id))
$$;

-- What remains of a range without some of its seqs.
create or replace function lockstep.range_without(_from bigint, _to bigint, _seqs bigint[]) returns table (from_seq bigint, to_seq bigint) language sql immutable as $$
    select t.before + 1, t.seq - 1
    from (select s.seq, lag(s.seq, 1, _from - 1) over (order by s.seq) as before from unnest(_seqs || (_to + 1)) s (seq)) t
    where t.before + 1 < t.seq
    order by 1
$$;

-- Records the deaths of the stored messages in [_from, _to].
create or replace function lockstep.shared_deaths(
    _queue_id int, _group_id int, _partition_id bigint, _from bigint, _to bigint, _attempts int, _error text, _now timestamptz
) returns void language sql as $$
    insert into lockstep.dead_letter (queue_id, partition_id, seq, group_name, attempts, error, failed_at)
    select _queue_id, _partition_id, t.seq, g.name, _attempts, _error, _now
    from lockstep.consumer_group g
    cross join lockstep.runs_between(_partition_id, _from - 1, _to) r
    cross join lateral generate_series(greatest(r.first_seq, _from), least(r.last_seq, _to)) t (seq)
    where g.id = _group_id
    order by t.seq
$$;

-- Drops the deliveries of a group whose cursors are locked; or gives them up, to be delivered again at once.
create or replace function lockstep.shared_seek(_group_id int, _partition_ids bigint[], _stay boolean, _now timestamptz) returns void language plpgsql as $$
begin
    if not exists (select 1 from lockstep.consumer_group g where g.id = _group_id and g.mode = 'shared') then
        return;
    end if;
    if _stay then
        update lockstep.delivery d set lease_id = null, leased_at = null, attempts = 0, due_at = _now
        where d.partition_id = any (_partition_ids) and d.group_id = _group_id;
    else
        delete from lockstep.delivery d where d.partition_id = any (_partition_ids) and d.group_id = _group_id;
    end if;
end $$;

-- Repairs what verify calls delivery_wrong, on locked cursors: drops what cannot be in flight, merges what is in flight
-- twice, and ends leases without messages.
create or replace function lockstep.shared_repair(_queue_id int, _now timestamptz) returns void language plpgsql as $$
begin
    -- An ordered group has no deliveries: the messages of such rows are delivered again, with all that follow.
    update lockstep.cursor c set acked = d.from_seq - 1, attempts = 0, lease_id = null, lease_to = null, leased_at = null,
        due_at = coalesce(nullif(c.due_at, 'infinity'), _now)
    from (
        select d.partition_id, d.group_id, min(d.from_seq) as from_seq
        from lockstep.delivery d
        join lockstep.partition p on p.id = d.partition_id and p.queue_id = _queue_id
        join lockstep.consumer_group g on g.id = d.group_id and g.mode <> 'shared'
        group by d.partition_id, d.group_id
    ) d
    where c.partition_id = d.partition_id and c.group_id = d.group_id and c.acked >= d.from_seq;
    delete from lockstep.delivery d using lockstep.partition p
    where p.queue_id = _queue_id and d.partition_id = p.id and not exists (
        select 1 from lockstep.cursor c join lockstep.consumer_group g on g.id = c.group_id
        where c.partition_id = d.partition_id and c.group_id = d.group_id and c.acked >= d.from_seq and g.mode = 'shared');
    -- If the end of a range is lost, it may have reached the next range, or the end of what was handed out.
    update lockstep.delivery d set to_seq = least(c.acked, coalesce((
        select min(t.from_seq) - 1 from lockstep.delivery t
        where t.partition_id = d.partition_id and t.group_id = d.group_id and t.from_seq > d.from_seq), c.acked))
    from lockstep.cursor c join lockstep.partition p on p.id = c.partition_id
    where p.queue_id = _queue_id and d.partition_id = c.partition_id and d.group_id = c.group_id and d.to_seq < d.from_seq;
    update lockstep.delivery d set to_seq = least(d.to_seq, c.acked, n.from_seq - 1)
    from lockstep.partition p
    join lockstep.cursor c on c.partition_id = p.id
    cross join lateral (
        select t.from_seq as own, lead(t.from_seq) over (order by t.from_seq) as from_seq from lockstep.delivery t
        where t.partition_id = c.partition_id and t.group_id = c.group_id
    ) n
    where p.queue_id = _queue_id and d.partition_id = c.partition_id and d.group_id = c.group_id and d.from_seq = n.own
      and d.to_seq > least(d.to_seq, c.acked, n.from_seq - 1);
    update lockstep.delivery d set lease_id = null, leased_at = null, due_at = _now
    from lockstep.partition p
    where p.queue_id = _queue_id and d.partition_id = p.id and (d.lease_id is null) <> (d.leased_at is null);
end $$;

-- Forgets ranges of locked partitions of which nothing is stored any more, except under a live lease.
create or replace function lockstep.shared_pass_removed(_partition_ids bigint[], _now timestamptz) returns void language sql as $$
    delete from lockstep.delivery d
    where d.partition_id = any (_partition_ids)
      and not coalesce(d.lease_id is not null and d.due_at > _now, false)
      and lockstep.still_stored(d.partition_id, d.from_seq - 1, d.to_seq) = 0
$$;
