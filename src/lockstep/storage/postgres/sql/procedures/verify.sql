-- Checks every invariant of the tables, one branch each, and repairs what can be recomputed. The checks run in slices,
-- so that each statement is short: over partitions, segments and trace entries.

-- The name of a group for people; 0 stands for the queue itself in the counts of pending messages, and a deleted group
-- has no name.
create or replace function lockstep.group_label(_group_id int) returns text language sql stable as $$
    select case _group_id when 0 then 'the queue'
        else 'group ' || coalesce((select quote_literal(g.name) from lockstep.consumer_group g where g.id = _group_id), _group_id::text) end
$$;

-- Checks the partitions after _after up to _upto, or to the end, of one queue or all: everything that belongs to a
-- partition.
create or replace function lockstep.verify(_queue_id int, _after bigint, _upto bigint, _at timestamptz) returns table (kind text, problem text, queue_name text, partition_id bigint, repairable boolean)
language sql stable as $$
    with lane as (
        select p.id, p.name, q.name as queue, q.id as queue_id
        from lockstep.queue q
        cross join lateral lockstep.partitions_between(q.id, _after, coalesce(_upto, 9223372036854775807)) t (id)
        cross join lateral (select p.* from lockstep.partition p where p.id = t.id limit 1) p
        where q.id = coalesce(_queue_id, q.id)
    ), reach as (
        select l.*, lockstep.start_of(l.id) as start_seq, lockstep.last_seq(l.id) as last_seq, lockstep.last_stored(l.id) as last_stored from lane l
    ), run as (
        select r.*, l.queue, l.queue_id, lag(r.last_seq) over (partition by r.partition_id order by r.first_seq) as previous_last,
               lead(r.first_seq) over (partition by r.partition_id order by r.first_seq) as next_first
        from lockstep.run r join lane l on l.id = r.partition_id
    ), place as (
        select c.*, r.queue, r.queue_id, r.start_seq, r.last_seq, r.last_stored
        from lockstep.cursor c join reach r on r.id = c.partition_id
        join lockstep.consumer_group g on g.id = c.group_id  -- leftovers of a deleted group are removed later
    )
    select 'seq_gap', format('seq %s follows seq %s', r.first_seq, coalesce(r.previous_last, 0)), r.queue, r.partition_id, false
    from run r where r.first_seq <> coalesce(r.previous_last + 1, greatest(r.first_seq, 1)) or r.last_seq < r.first_seq
    union all
    select 'segment_missing', format('the segment %s of seqs %s to %s is not there', r.segment_id, r.first_seq, r.last_seq), r.queue, r.partition_id, false
    from run r left join lockstep.segment s on s.id = r.segment_id
    where r.segment_id is not null and (s.id is null or s.queue_id <> r.queue_id or r.ordinal + r.last_seq - r.first_seq >= s.message_count)
    union all
    select 'manifest_wrong', format('the manifest of segment %s does not have seqs %s to %s', s.id, r.first_seq, r.last_seq), r.queue, r.partition_id, false
    from run r join lockstep.segment s on s.id = r.segment_id
    where not exists (
        select 1 from unnest(array_positions(s.partition_ids, r.partition_id)) i
        where r.first_seq >= s.first_seqs[i] and r.last_seq < s.first_seqs[i] + s.counts[i]
    )
    union all
    select 'cursor_missing', format('group %s has no cursor', quote_literal(g.name)), l.queue, l.id, true
    from lane l join lockstep.consumer_group g on g.queue_id = l.queue_id
    where g.placed_upto is null and not exists (select 1 from lockstep.cursor c where c.partition_id = l.id and c.group_id = g.id)
    union all
    select 'cursor_out_of_range', format('%s is at %s, outside of %s to %s', lockstep.group_label(c.group_id), c.acked, c.start_seq, c.last_seq), c.queue, c.partition_id, true
    from place c where c.acked > c.last_seq or (c.acked < c.start_seq and c.lease_id is null and c.due_at is null)
    union all
    select 'lease_invalid', format('%s has lease %s on seqs %s to %s of %s', lockstep.group_label(c.group_id), c.lease_id, c.acked + 1, c.lease_to, c.last_seq),
           c.queue, c.partition_id, true
    from place c
    where (c.lease_id is null) <> (c.lease_to is null) or (c.lease_id is null) <> (c.leased_at is null)
       or (c.lease_id is not null and (c.due_at is null or c.lease_to < c.acked or c.lease_to > c.last_seq))
    union all
    select 'due_at_wrong', format('%s is due at %s, with %s messages ahead', lockstep.group_label(c.group_id), coalesce(c.due_at::text, 'no time'), lockstep.lag(c.partition_id, c.acked)),
           c.queue, c.partition_id, true
    from place c where c.lease_id is null
      and ((c.due_at is null and c.last_stored > c.acked)
        -- A pop that could not lock the partition leaves a drained cursor due for a moment; the next pop corrects it.
        or (coalesce(c.last_stored, 0) <= c.acked
            and (c.due_at < coalesce(_at, clock_timestamp()) - interval '1 minute' or c.due_at > coalesce(_at, clock_timestamp()))))
    union all
    select 'delivery_wrong', format('%s has seqs %s to %s in flight, but has handed out up to %s', lockstep.group_label(d.group_id), d.from_seq, d.to_seq, coalesce(d.acked::text, 'nothing')),
           d.queue, d.partition_id, true
    from (
        select d.*, l.queue, c.acked, g.mode, lag(d.to_seq) over (partition by d.partition_id, d.group_id order by d.from_seq) as previous_to
        from lockstep.delivery d join lane l on l.id = d.partition_id
        left join lockstep.cursor c on c.partition_id = d.partition_id and c.group_id = d.group_id
        left join lockstep.consumer_group g on g.id = d.group_id
        where not exists (select 1 from lockstep.deleted_group o where o.id = d.group_id)
    ) d
    where d.to_seq < d.from_seq or d.acked is null or d.to_seq > d.acked or d.from_seq <= d.previous_to or d.mode is distinct from 'shared'
       or (d.lease_id is null) <> (d.leased_at is null)
    union all
    select 'dedup_dangling', format('transaction id %s points at seq %s, which is not stored', d.transaction_id, d.seq), l.queue, l.id, true
    from (
        select d.partition_id, d.transaction_id::text, d.seq from lockstep.dedup_uuid d
        union all select d.partition_id, d.transaction_id, d.seq from lockstep.dedup_text d
    ) d join lane l on l.id = d.partition_id
    where not exists (select 1 from lockstep.runs_between(d.partition_id, d.seq - 1, d.seq) r)
    union all
    select 'trace_dangling', format('trace event %s points at seq %s, which is not stored', e.id, e.seq), l.queue, l.id, true
    from lockstep.trace_event e join lane l on l.id = e.partition_id
    where not exists (select 1 from lockstep.runs_between(e.partition_id, e.seq - 1, e.seq) r)
    union all
    select 'dead_letter_dangling', format('dead letter %s points at seq %s, which is not stored', d.id, d.seq), l.queue, l.id, true
    from lockstep.dead_letter d join lane l on l.id = d.partition_id
    where not exists (select 1 from lockstep.runs_between(d.partition_id, d.seq - 1, d.seq) r)
$$;

-- Messages that are in a partition according to the segment manifests but that no run names: unless these seqs belong
-- to something else, or they were removed in order, so that every cursor has passed them. may_be_restored means that
-- they touch the existing runs.
create or replace function lockstep.unnamed(_queue_id int, _after bigint, _upto bigint)
returns table (segment_id bigint, queue_id int, partition_id bigint, first_seq bigint, last_seq bigint, ordinal int, may_be_restored boolean)
language sql stable as $$
    select m.segment_id, m.queue_id, m.partition_id, m.first_seq, m.last_seq, m.ordinal,
           coalesce(m.last_seq + 1 = e.first_seq or m.first_seq = e.last_seq + 1, true)
    from (
        select s.id as segment_id, s.queue_id, s.partition_ids, s.first_seqs, s.counts, m.partition_id, m.first_seq,
               m.first_seq + m.n - 1 as last_seq, m.ordinal::int
        from lockstep.segment s
        cross join lateral (
            select m.*, sum(m.n) over (order by m.place) - m.n as ordinal
            from unnest(s.partition_ids, s.first_seqs, s.counts) with ordinality m (partition_id, first_seq, n, place)
        ) m
        where s.queue_id = coalesce(_queue_id, s.queue_id) and s.id > _after and s.id <= coalesce(_upto, s.id)
          -- Runs do not overlap, so only the last run that begins before its end can extend into it.
          and coalesce((
              select r.last_seq from lockstep.run r where r.partition_id = m.partition_id and r.first_seq <= m.first_seq + m.n - 1
              order by r.first_seq desc limit 1), 0) < m.first_seq
        offset 0
    ) m
    join lockstep.partition p on p.id = m.partition_id and p.queue_id = m.queue_id
    cross join lateral (
        select (select r.first_seq from lockstep.run r where r.partition_id = p.id order by r.first_seq limit 1) as first_seq,
               (select r.last_seq from lockstep.run r where r.partition_id = p.id order by r.first_seq desc limit 1) as last_seq
    ) e
    where coalesce(m.first_seq > e.last_seq, true) or lockstep.is_orphaned(m.segment_id, m.partition_ids, m.first_seqs, m.counts)
       or exists (select 1 from lockstep.cursor c where c.partition_id = p.id and c.acked < m.last_seq)
$$;

-- Whether no run names anything of a segment. (The manifest is passed as arguments: a whole row would be read with its
-- body.)
create or replace function lockstep.is_orphaned(_id bigint, _partition_ids bigint[], _first_seqs bigint[], _counts int[]) returns boolean language sql stable as $$
    select not exists (
        select 1 from unnest(_partition_ids, _first_seqs, _counts) m (partition_id, first_seq, n)
        join lockstep.run r on r.partition_id = m.partition_id and r.segment_id = _id
            and r.first_seq between m.first_seq and m.first_seq + m.n - 1
    )
$$;

-- Whether an orphaned segment is not needed: its partitions are gone, or hold places for removed messages there.
create or replace function lockstep.is_unwanted(_queue_id int, _partition_ids bigint[], _first_seqs bigint[], _counts int[]) returns boolean language sql stable as $$
    select not exists (
        select 1 from unnest(_partition_ids, _first_seqs, _counts) m (partition_id, first_seq, n)
        join lockstep.partition p on p.id = m.partition_id and p.queue_id = _queue_id
        where coalesce((
            select r.segment_id is not null or r.last_seq < m.first_seq + m.n - 1 from lockstep.run r
            where r.partition_id = p.id and r.first_seq <= m.first_seq order by r.first_seq desc limit 1), true)
    )
$$;

-- Checks the segments after _after up to _upto, or to the end, of one queue or all.
create or replace function lockstep.verify_segments(_queue_id int, _after bigint, _upto bigint) returns table (kind text, problem text, queue_name text, partition_id bigint, repairable boolean)
language sql stable as $$
    select 'segment_orphaned', case when u.unwanted then format('segment %s has no message that is still wanted', s.id)
                                    else format('no run names what is in segment %s', s.id) end, q.name, null::bigint, u.unwanted
    from (
        select s.id, s.queue_id, s.partition_ids, s.first_seqs, s.counts from lockstep.segment s
        where s.queue_id = coalesce(_queue_id, s.queue_id) and s.id > _after and s.id <= coalesce(_upto, s.id)
          and lockstep.is_orphaned(s.id, s.partition_ids, s.first_seqs, s.counts)
        offset 0
    ) s
    join lockstep.queue q on q.id = s.queue_id
    cross join lateral (select lockstep.is_unwanted(s.queue_id, s.partition_ids, s.first_seqs, s.counts) as unwanted) u
    where (u.unwanted or not exists (select 1 from lockstep.unnamed(s.queue_id, s.id - 1, s.id)))
    union all
    select 'run_missing', format('no run names seqs %s to %s, which are in segment %s', u.first_seq, u.last_seq, u.segment_id), q.name,
           u.partition_id, u.may_be_restored
    from lockstep.unnamed(_queue_id, _after, _upto) u join lockstep.queue q on q.id = u.queue_id
    union all
    select 'manifest_wrong', format('seqs %s to %s begin at message %s of segment %s, not at %s', r.first_seq, r.last_seq, r.ordinal, s.id, m.ordinal + r.first_seq - m.first_seq),
           q.name, r.partition_id, false
    from lockstep.segment s join lockstep.queue q on q.id = s.queue_id
    cross join lateral (
        select m.*, sum(m.n) over (order by m.place) - m.n as ordinal
        from unnest(s.partition_ids, s.first_seqs, s.counts) with ordinality m (partition_id, first_seq, n, place)
    ) m
    join lockstep.run r on r.partition_id = m.partition_id and r.segment_id = s.id and r.first_seq between m.first_seq and m.first_seq + m.n - 1
    where s.queue_id = coalesce(_queue_id, s.queue_id) and s.id > _after and s.id <= coalesce(_upto, s.id)
      and r.ordinal <> m.ordinal + r.first_seq - m.first_seq
$$;

-- Checks the trace entries after _after up to _upto, or to the end, of one queue or all. They are ordered by trace, so
-- those of one queue are found among all.
create or replace function lockstep.verify_traces(_queue_id int, _after uuid, _upto uuid) returns table (kind text, problem text, queue_name text, partition_id bigint, repairable boolean)
language sql stable as $$
    select 'trace_dangling', format('trace %s points at seq %s, which is not stored', t.trace_id, t.seq), q.name, p.id, true
    from lockstep.trace_index t join lockstep.partition p on p.id = t.partition_id join lockstep.queue q on q.id = p.queue_id
    where t.trace_id > _after and (_upto is null or t.trace_id <= _upto) and q.id = coalesce(_queue_id, q.id)
      and not exists (select 1 from lockstep.runs_between(t.partition_id, t.seq - 1, t.seq) r)
$$;

-- Checks the stored fill level of a queue.
create or replace function lockstep.verify_depth(_queue_id int) returns table (kind text, problem text, queue_name text, partition_id bigint, repairable boolean)
language sql stable as $$
    select 'depth_wrong', format('%s is counted with %s pending messages, but has %s', lockstep.group_label(t.group_id), t.counted, t.expected), q.name, null::bigint, true
    from lockstep.queue q
    cross join lateral (
        select coalesce(e.group_id, d.group_id) as group_id, e.pending as expected, d.pending as counted
        from lockstep.counted(q.id) e
        full join (
            select d.group_id, sum(d.pending)::bigint as pending from lockstep.depth d
            where d.queue_id = q.id and not exists (select 1 from lockstep.deleted_group o where o.id = d.group_id) group by d.group_id
        ) d on d.group_id = e.group_id
    ) t
    where q.id = _queue_id and q.max_size > 0 and t.counted is distinct from t.expected
$$;

-- The queues that have segments but do not exist, and were not just deleted: walks from queue to queue through the
-- index.
create or replace function lockstep.lost_queues() returns table (id int) language sql stable as $$
    with recursive walk (queue_id) as (
        (select s.queue_id from lockstep.segment s order by s.queue_id limit 1)
        union all
        select (select s.queue_id from lockstep.segment s where s.queue_id > w.queue_id order by s.queue_id limit 1)
        from walk w where w.queue_id is not null
    )
    select w.queue_id from walk w
    where w.queue_id <> 0 and not exists (select 1 from lockstep.queue q where q.id = w.queue_id)
      and not exists (select 1 from lockstep.deleted_queue d where d.id = w.queue_id)
$$;

-- Checks for segments without a queue. If their partitions exist, the queue's row was lost.
create or replace function lockstep.verify_lost() returns table (kind text, problem text, queue_name text, partition_id bigint, repairable boolean)
language sql stable as $$
    select 'segment_orphaned', case when u.unwanted then format('segment %s has no message that is still wanted', s.id)
                                    else format('segment %s is of a queue that has partitions and no row', s.id) end, null::text, null::bigint, u.unwanted
    from lockstep.lost_queues() l
    cross join lateral (select not exists (select 1 from lockstep.partition p where p.queue_id = l.id) as unwanted) u
    join lockstep.segment s on s.queue_id = l.id
    order by s.id
$$;

-- Removes the segments of lost queues of which nothing else is left.
create or replace function lockstep.repair_lost() returns void language sql as $$
    delete from lockstep.segment s using lockstep.lost_queues() l
    where s.queue_id = l.id and not exists (select 1 from lockstep.partition p where p.queue_id = l.id)
$$;

-- Recreates runs that are missing at the ends of partitions from the manifests. Each may make room for the next.
-- Nothing is inserted between runs, because it is unknown what happened to the rest.
create or replace function lockstep.restore_runs(_queue_id int) returns void language plpgsql as $$
begin
    perform 1 from lockstep.queue q where q.id = _queue_id for no key update;
    perform 1 from lockstep.partition p where p.queue_id = _queue_id order by p.id for no key update;
    loop
        insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
        -- One per partition at a time: two may claim the same seqs.
        select distinct on (u.partition_id) u.partition_id, u.first_seq, u.last_seq, u.segment_id, u.ordinal
        from lockstep.unnamed(_queue_id, 0, null) u where u.may_be_restored
        order by u.partition_id, u.first_seq, u.segment_id;
        exit when not found;
    end loop;
end $$;

-- Recomputes what can be recomputed, under the locks of the queue, its partitions and its cursors. Unless the runs are
-- sound, nothing is removed for referring to messages that no run names, and no cursor moves forward: a run may be what
-- is missing.
create or replace function lockstep.repair(_queue_id int, _sound boolean, _at timestamptz) returns void language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _queue lockstep.queue;
begin
    select q.* into _queue from lockstep.queue q where q.id = _queue_id for no key update;
    perform 1 from lockstep.partition p where p.queue_id = _queue_id order by p.id for no key update;
    perform lockstep.place(_queue_id, null, array(select p.id from lockstep.partition p where p.queue_id = _queue_id));
    insert into lockstep.cursor (partition_id, group_id, acked)
    select p.id, g.id, lockstep.start_of(p.id) from lockstep.partition p join lockstep.consumer_group g on g.queue_id = p.queue_id
    where p.queue_id = _queue_id
    on conflict do nothing;
    update lockstep.cursor c set lease_id = null, lease_to = null, leased_at = null
    from lockstep.partition p
    where p.queue_id = _queue_id and c.partition_id = p.id
      and (c.lease_id is null or c.due_at is null or c.lease_to is null or c.leased_at is null or c.lease_to < c.acked or c.lease_to > lockstep.last_seq(p.id));
    update lockstep.cursor c
    set acked = least(greatest(c.acked, case when _sound then lockstep.start_of(p.id) else 0 end), lockstep.last_seq(p.id))
    from lockstep.partition p where p.queue_id = _queue_id and c.partition_id = p.id and c.lease_id is null;
    update lockstep.cursor c
    set due_at = lockstep.due_at(p.id, c.acked, _queue.delay_seconds, _queue.window_seconds, coalesce(c.due_at, _now))
    from lockstep.partition p where p.queue_id = _queue_id and c.partition_id = p.id and c.lease_id is null;
    perform lockstep.shared_repair(_queue_id, _now);
    if _sound then
        perform lockstep.repair_pointers(_queue_id);
    end if;
    perform lockstep.recount(_queue_id);
end $$;

-- Removes what refers to messages that are not stored, in locked partitions.
create or replace function lockstep.repair_pointers(_queue_id int) returns void language sql as $$
    delete from lockstep.dedup_uuid d using lockstep.partition p
    where p.queue_id = _queue_id and d.partition_id = p.id and not exists (select 1 from lockstep.runs_between(p.id, d.seq - 1, d.seq) r);
    delete from lockstep.dedup_text d using lockstep.partition p
    where p.queue_id = _queue_id and d.partition_id = p.id and not exists (select 1 from lockstep.runs_between(p.id, d.seq - 1, d.seq) r);
    delete from lockstep.trace_index t using lockstep.partition p
    where p.queue_id = _queue_id and t.partition_id = p.id and not exists (select 1 from lockstep.runs_between(p.id, t.seq - 1, t.seq) r);
    delete from lockstep.trace_name n using lockstep.partition p
    where p.queue_id = _queue_id and n.partition_id = p.id and not exists (select 1 from lockstep.runs_between(p.id, n.seq - 1, n.seq) r);
    delete from lockstep.trace_event e using lockstep.partition p
    where p.queue_id = _queue_id and e.partition_id = p.id and not exists (select 1 from lockstep.runs_between(p.id, e.seq - 1, e.seq) r);
    delete from lockstep.dead_letter d using lockstep.partition p
    where p.queue_id = _queue_id and d.partition_id = p.id and not exists (select 1 from lockstep.runs_between(p.id, d.seq - 1, d.seq) r);
$$;

-- Removes the segments of a queue that no run names and that are not needed. It does not rely on the manifests to find
-- the runs of a segment, because those may be wrong.
create or replace function lockstep.repair_segments(_queue_id int) returns void language sql as $$
    select lockstep.sweep_segments(array(
        select s.id from (
            select s.id from lockstep.segment s where s.queue_id = _queue_id
            except select r.segment_id from lockstep.partition p join lockstep.run r on r.partition_id = p.id where p.queue_id = _queue_id
        ) u
        join lockstep.segment s on s.id = u.id
        where lockstep.is_unwanted(s.queue_id, s.partition_ids, s.first_seqs, s.counts)
    ))
$$;
