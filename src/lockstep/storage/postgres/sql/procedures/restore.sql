-- Restore: puts messages of an archive back into a queue under their original ids.
--
-- A message id consists of its segment's UUID and the message's ordinal there. A restored segment therefore has the
-- UUID of the original segment, and each message its ordinal. Ordinals that are not restored are filled with empty
-- messages that no run names, as after a removal; the manifest lists them under partition 0, which does not exist. The
-- seqs are new: restored messages come after all messages of their partition. Several segments may have the same UUID.
-- Their messages in one partition never overlap: restore_begin returns what is stored, and its locks keep that
-- unchanged until the transaction ends.
-- Locks: rows of queues that have a max_size (by name), then partition rows (by id), then cursor rows of drained
-- partitions.
-- Indexes: segment_uuid, run_pkey, partition_pkey, dedup pkeys, cursor_pkey.

-- Locks everything that the transaction writes to; returns the ordinals of the segments that are stored in these
-- partitions. Raises SQLSTATE LS001 if a partition is gone, or a queue has got a max_size in the meantime: the names
-- must be resolved again.
create or replace function lockstep.restore_begin(_limited int[], _queue_ids int[], _partition_ids bigint[], _uuids uuid[])
returns table (uuid uuid, partition_id bigint, ordinal int, count int) language plpgsql as $$
#variable_conflict use_column
declare
    _locked int;
begin
    perform lockstep.check_isolation();
    perform 1 from lockstep.queue q where q.id = any (_limited) order by q.name for no key update;
    select count(*) into _locked from (
        select 1 from lockstep.partition p where p.id = any (_partition_ids) and p.queue_id = any (_queue_ids) order by p.id for no key update
    ) p;
    if _locked <> cardinality(_partition_ids)
       or exists (select 1 from unnest(_queue_ids) t (id) where not exists (select 1 from lockstep.queue q where q.id = t.id))
       or exists (select 1 from lockstep.queue q where q.id = any (_queue_ids) and q.max_size > 0 and q.id <> all (_limited)) then
        raise exception 'the queue changed in this moment' using errcode = 'LS001';
    end if;
    return query
    select s.uuid, r.partition_id, r.ordinal, (r.last_seq - r.first_seq)::int + 1
    from (select distinct unnest(_uuids) as uuid) t
    join lockstep.segment s on s.uuid = t.uuid
    cross join lateral unnest(s.partition_ids, s.first_seqs, s.counts) m (partition_id, first_seq, n)
    join lockstep.run r on r.partition_id = m.partition_id and r.segment_id = s.id and r.first_seq between m.first_seq and m.first_seq + m.n - 1
    where m.partition_id = any (_partition_ids);
end $$;

-- Stores one segment, within a transaction that called restore_begin. The manifest gives, in the order of the ordinals,
-- the number of messages per partition; the dedup and trace arrays identify messages by entry of the manifest and
-- offset in it. A null _created_at is now; otherwise it is raised to the time of the newest message in the partitions,
-- so that times still rise with seqs. Raises SQLSTATE LS003 if the queue is full, LS001 if it has been encrypted in the
-- meantime.
create or replace function lockstep.restore_segment(
    _queue_id int, _uuid uuid, _created_at timestamptz, _codec smallint, _body bytea, _partition_ids bigint[], _counts int[],
    _index lockstep.message_index, _plain lockstep.plain_columns, _plain_allowed boolean
) returns void language plpgsql as $$
declare
    _now timestamptz := clock_timestamp();
    _queue lockstep.queue;
    _lanes bigint[] := array(select distinct t.id from unnest(_partition_ids) t (id) where t.id <> 0);
    _first_seqs bigint[];
    _segment_id bigint;
    _messages int := (select sum(n) from unnest(_counts) n);
begin
    select q.* into _queue from lockstep.queue q where q.id = _queue_id;
    if _queue.encryption and _codec & 4 = 0 and not _plain_allowed then
        raise exception 'the queue changed in this moment' using errcode = 'LS001';
    end if;
    if _queue.max_size > 0 then
        perform lockstep.restore_room(_queue, (select sum(t.n)::int from unnest(_partition_ids, _counts) t (id, n) where t.id <> 0));
    end if;
    select array_agg(case when t.id = 0 then 0 else l.last_seq + 1 + t.before end order by t.o) into _first_seqs
    from (
        select t.*, coalesce(sum(t.n) over (partition by t.id order by t.o rows between unbounded preceding and 1 preceding), 0)::bigint as before
        from unnest(_partition_ids, _counts) with ordinality t (id, n, o)
    ) t
    left join lateral (select lockstep.last_seq(t.id) as last_seq) l on true;
    if _created_at is not null then
        _created_at := greatest(_created_at, (
            select max(s.created_at) from unnest(_lanes) t (id)
            cross join lateral (
                select r.segment_id from lockstep.run r where r.partition_id = t.id and r.segment_id is not null order by r.first_seq desc limit 1
            ) r
            join lockstep.segment s on s.id = r.segment_id
        ));
    end if;
    insert into lockstep.segment (
        queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, body,
        payloads, transaction_ids, trace_ids, kinds, refs, encodings, headers, producer_subs
    ) values (
        _queue_id, _uuid, coalesce(_created_at, _now), _codec, _messages, _partition_ids, _first_seqs, _counts, _body,
        _plain.payloads, _plain.transaction_ids, _plain.trace_ids, _plain.kinds, _plain.refs, _plain.encodings,
        _plain.headers, _plain.producer_subs
    ) returning id into _segment_id;
    insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
    select t.id, t.first_seq, t.first_seq + t.n - 1, _segment_id, t.ordinal
    from (
        select t.*, (sum(t.n) over (order by t.o) - t.n)::int as ordinal
        from unnest(_partition_ids, _first_seqs, _counts) with ordinality t (id, first_seq, n, o)
    ) t
    where t.id <> 0;
    perform lockstep.index_messages(_index, _partition_ids, _first_seqs);
    if exists (select 1 from lockstep.consumer_group g where g.queue_id = _queue_id) then
        perform lockstep.wake(
            _queue_id, _lanes,
            array(select (select min(_first_seqs[i]) from unnest(array_positions(_partition_ids, l.id)) i) from unnest(_lanes) with ordinality l (id, o) order by l.o),
            _now);
    end if;
end $$;

-- Adds messages to the depth of a queue with a max_size, whose row is locked. Raises SQLSTATE LS003 if they do not fit.
create or replace function lockstep.restore_room(_queue lockstep.queue, _messages int) returns void language plpgsql as $$
declare
    _room record;
begin
    select * into _room from lockstep.take_room(array[_queue.id], array[_queue.max_size], array[1], array[_messages]);
    if _room._full > 0 then
        raise exception 'queue % holds % of at most % pending messages; % more do not fit', _queue.name, _room._depths[1], _queue.max_size, _messages
            using errcode = 'LS003';
    end if;
end $$;
