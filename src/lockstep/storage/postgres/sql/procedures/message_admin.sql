-- An operator's actions on single messages: remove, retry, bury. Each returns its finding as a word; only the first
-- word of each list means that anything was changed.
-- Locks: the queue row if it has a max_size and something will be pushed, the partition row, then cursor rows.

-- Removes one message for all groups. removed | not_found | leased
create or replace function lockstep.remove_message(_partition_id bigint, _transaction_id text, _at timestamptz) returns text language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _queue lockstep.queue;
    _seq bigint;
begin
    -- Prevents that a group begins, so that the counts stay the same.
    perform 1 from lockstep.partition p join lockstep.queue q on q.id = p.queue_id where p.id = _partition_id and q.max_size > 0 for share of q;
    perform 1 from lockstep.partition p where p.id = _partition_id for no key update;
    perform lockstep.place(p.queue_id, null, array[p.id]) from lockstep.partition p where p.id = _partition_id;
    perform 1 from lockstep.cursor c where c.partition_id = _partition_id order by c.group_id for no key update;
    select q.* into _queue from lockstep.partition p join lockstep.queue q on q.id = p.queue_id where p.id = _partition_id;
    _seq := lockstep.resolve_seq(_partition_id, _transaction_id);
    if _queue.id is null or _seq is null then
        return 'not_found';
    end if;
    if lockstep.is_under_lease(_partition_id, _seq, _now) then
        return 'leased';
    end if;
    if _queue.max_size > 0 then
        perform lockstep.count_pruned(_queue.id, array[_partition_id], array[_seq], array[_seq]);
    end if;
    perform lockstep.remove(_partition_id, _seq, _seq);
    perform lockstep.pass_removed(array[_partition_id], _queue, _now, _now);
    return 'removed';
end $$;

-- Finds a message to push again, and locks its dead letters; returns where it is, and where their copies are. retried |
-- not_found | pending | taken (another session is redriving it) Does not wait for locked dead letters: a redrive locks
-- them before it locks the partition.
create or replace function lockstep.retry_message(
    _partition_id bigint, _transaction_id text,
    out _status text, out _queue text, out _partition text, out _seq bigint, out _segment_id bigint, out _ordinal int,
    out _ids bigint[], out _copy_partitions bigint[], out _copy_seqs bigint[]
) language plpgsql as $$
declare
    _dead boolean;
begin
    _seq := lockstep.resolve_seq(_partition_id, _transaction_id);
    perform lockstep.lock_for_transaction(
        array(select p.queue_id from lockstep.partition p where p.id = _partition_id),
        _partition_id || array(
            select d.copy_partition_id from lockstep.dead_letter d
            where d.partition_id = _partition_id and d.seq = _seq and d.copy_partition_id is not null),
        null);
    _seq := lockstep.resolve_seq(_partition_id, _transaction_id);
    select q.name, p.name, r.segment_id, (r.ordinal + _seq - r.first_seq)::int into _queue, _partition, _segment_id, _ordinal
    from lockstep.partition p
    join lockstep.queue q on q.id = p.queue_id
    cross join lateral lockstep.runs_between(p.id, _seq - 1, _seq) r
    where p.id = _partition_id;
    if not found then
        _status := 'not_found';
        return;
    end if;
    _dead := exists (select 1 from lockstep.dead_letter d where d.partition_id = _partition_id and d.seq = _seq);
    if not _dead and (
        coalesce((
            select min(c.acked) < _seq from lockstep.partition p cross join lateral lockstep.cursors_at(p.queue_id, p.id) c where p.id = _partition_id), true)
        or exists (
            select 1 from lockstep.delivery d join lockstep.consumer_group g on g.id = d.group_id where d.partition_id = _partition_id and _seq between d.from_seq and d.to_seq)
    ) then
        _status := 'pending';
        return;
    end if;
    select array_agg(t.id), array_agg(t.copy_partition_id), array_agg(t.copy_seq) into _ids, _copy_partitions, _copy_seqs
    from (
        select d.id, d.copy_partition_id, d.copy_seq from lockstep.dead_letter d
        where d.partition_id = _partition_id and d.seq = _seq for update skip locked
    ) t;
    _status := case when _dead and _ids is null then 'taken' else 'retried' end;
end $$;

-- Makes the head of a group a dead letter and passes it (rules.bury).
-- buried | not_found | no_group | done | leased | behind (others come before it)
create or replace function lockstep.bury_message(
    _partition_id bigint, _transaction_id text, _group text, _error text, _at timestamptz, out _status text, out _dead_letter_id bigint
) language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _queue lockstep.queue;
    _cursor lockstep.cursor;
    _range lockstep.delivery;
    _seq bigint;
begin
    perform 1 from lockstep.partition p where p.id = _partition_id for no key update;
    select q.* into _queue from lockstep.partition p join lockstep.queue q on q.id = p.queue_id where p.id = _partition_id;
    perform lockstep.place(_queue.id, null, array[_partition_id]);
    _seq := lockstep.resolve_seq(_partition_id, _transaction_id);
    select c.* into _cursor
    from lockstep.consumer_group g join lockstep.cursor c on c.partition_id = _partition_id and c.group_id = g.id
    where g.queue_id = _queue.id and g.name = _group
    for no key update of c;
    select d.* into _range from lockstep.delivery d
    where d.partition_id = _partition_id and d.group_id = _cursor.group_id and _seq between d.from_seq and d.to_seq for update;
    _status := case
        when _queue.id is null or _seq is null then 'not_found'
        when _cursor.partition_id is null then 'no_group'
        when _range.lease_id is not null and _range.due_at > _now then 'leased'
        when _range.from_seq is not null then 'buried'
        when _seq <= _cursor.acked then 'done'
        when _cursor.lease_id is not null and _cursor.due_at > _now then 'leased'
        when _seq > lockstep.next_seq(_partition_id, _cursor.acked) then 'behind'
        else 'buried' end;
    if _status <> 'buried' then
        return;
    end if;
    insert into lockstep.dead_letter (queue_id, partition_id, seq, group_name, attempts, error, failed_at)
    values (_queue.id, _partition_id, _seq, _group, coalesce(_range.attempts + (_range.lease_id is not null)::int,
            _cursor.attempts + (coalesce(_cursor.lease_to, 0) >= _seq)::int), _error, _now)
    returning id into _dead_letter_id;
    if _range.from_seq is not null then
        perform lockstep.shared_end_seqs(_range, array[_seq]);
        return;
    end if;
    update lockstep.cursor c
    set acked = _seq, attempts = 0, consumed_at = _now, lease_id = null, lease_to = null, leased_at = null,
        due_at = lockstep.due_at(_partition_id, _seq, _queue.delay_seconds, _queue.window_seconds, _now)
    where c.partition_id = _partition_id and c.group_id = _cursor.group_id;
    perform lockstep.count_moves(array[_cursor.group_id], array[_partition_id], array[_cursor.acked], array[_seq]);
end $$;
