-- Deletes queues: a deleted queue can no longer be found from that moment, and its contents are removed in bounded
-- slices, each in a transaction of its own.
--
-- Without its row in lockstep.queue and its groups, nothing reaches the contents: names are looked up there, and a
-- caller with an older id finds the row or the group gone. A queue of the same name can be created at once and is
-- unrelated. A push in flight holds its partitions and commits before they are removed; no new push can begin.
-- Locks: delete_queue locks the queue row. A slice locks the row of the deleted queue, so that slices run one after the
-- other, then partition rows (by id), then what belongs to them.
-- Indexes: partition_queue, segment_queue; for tables with rows per partition, the index that starts with the
-- partition.

-- Deletes a queue; returns its id for the following slices, or null if it does not exist.
create or replace function lockstep.delete_queue(_queue text, _at timestamptz default null) returns int language plpgsql as $$
declare
    _queue_id int;
begin
    if not lockstep.is_trusted() then perform lockstep.check_times(array[_at]), lockstep.need_names('{configure}', array[_queue]); end if;
    select q.id into _queue_id from lockstep.queue q where q.name = _queue for update;
    if not found then
        return null;
    end if;
    if exists (select 1 from lockstep.queue s where s.dead_queue_id = _queue_id) then
        raise exception 'queue % is the dead queue of %', _queue, (select min(s.name) from lockstep.queue s where s.dead_queue_id = _queue_id)
            using errcode = 'LS007';
    end if;
    insert into lockstep.deleted_queue (id, name, deleted_at) values (_queue_id, _queue, coalesce(_at, clock_timestamp()));
    with gone as (delete from lockstep.consumer_group g where g.queue_id = _queue_id returning g.id)
    delete from lockstep.missing_cursor m where m.group_id in (select g.id from gone g);
    delete from lockstep.subscription s where s.queue_id = _queue_id;
    delete from lockstep.spark_position p where p.queue_id = _queue_id;
    delete from lockstep.queue q where q.id = _queue_id;
    return _queue_id;
end $$;

-- Removes the next partitions of a deleted queue with everything that belongs to them except segments: at most
-- _partitions partitions and about _rows rows. Returns how many partitions were removed, and whether there are more.
create or replace function lockstep.remove_deleted_partitions(_queue_id int, _partitions int, _rows int, out _removed int, out _more boolean) language plpgsql as $$
declare
    _ids bigint[];
    _table text;
    _gone int;
begin
    _removed := 0;
    perform 1 from lockstep.deleted_queue d where d.id = _queue_id for update;
    _ids := lockstep.next_partitions(_queue_id, 0, _partitions);
    _ids := array(select p.id from lockstep.partition p where p.id = any (_ids) order by p.id for update);
    -- Runs before trace events, because recording a trace event holds the run.
    foreach _table in array array['cursor', 'delivery', 'dedup_uuid', 'dedup_text', 'run', 'dead_letter', 'trace_name', 'trace_event', 'stream_state'] loop
        execute format(
            'delete from lockstep.%1$I t where t.ctid = any (array(select s.ctid from lockstep.%1$I s where s.partition_id = any ($1) limit $2))',
            _table) using _ids, _rows;
        get diagnostics _gone = row_count;
        _rows := _rows - _gone;
        if _rows <= 0 then
            _more := true;
            return;
        end if;
    end loop;
    -- A pop or an ack working on them may have changed rows, which the statements above then skipped.
    _more := exists (select 1 from lockstep.cursor c where c.partition_id = any (_ids)) or exists (select 1 from lockstep.delivery d where d.partition_id = any (_ids));
    if not _more then
        delete from lockstep.partition p where p.id = any (_ids);
        _removed := cardinality(_ids);
        _more := exists (select 1 from lockstep.partition p where p.queue_id = _queue_id);
    end if;
end $$;

-- Removes segments of a deleted queue whose partitions are gone, with their trace entries, which are passed as for a
-- prune; returns the number of messages in them.
create or replace function lockstep.remove_deleted_segments(
    _queue_id int, _segment_ids bigint[], _unread bigint[], _trace_partitions bigint[], _trace_seqs bigint[], _traces uuid[]
) returns bigint language plpgsql as $$
declare
    _removed bigint;
begin
    perform 1 from lockstep.deleted_queue d where d.id = _queue_id for update;
    perform lockstep.forget_ids(null, null, null, null, _trace_partitions, _trace_seqs, _traces);
    if _unread <> '{}' then
        delete from lockstep.trace_index t
        where t.partition_id in (select unnest(s.partition_ids) from lockstep.segment s where s.id = any (_unread));
    end if;
    with gone as (delete from lockstep.segment s where s.id = any (_segment_ids) and s.queue_id = _queue_id returning s.message_count)
    select coalesce(sum(g.message_count), 0) into _removed from gone g;
    return _removed;
end $$;

-- Removes the rest, about _rows rows at a time, and finally the deleted queue itself; returns whether there is more.
create or replace function lockstep.end_deletion(_queue_id int, _rows int) returns boolean language plpgsql as $$
declare
    _gone int;
begin
    perform 1 from lockstep.deleted_queue d where d.id = _queue_id for update;
    _rows := _rows - lockstep.remove_scheduled(_queue_id, null, _rows);
    if _rows <= 0 then
        return true;
    end if;
    delete from lockstep.spark_removal r
    where r.ctid = any (array(select s.ctid from lockstep.spark_removal s where s.queue_id = _queue_id limit _rows));
    get diagnostics _gone = row_count;
    if _gone >= _rows then
        return true;
    end if;
    -- Again: a session that found the queue just before it was deleted may have written here since.
    delete from lockstep.spark_position p where p.queue_id = _queue_id;
    delete from lockstep.subscription s where s.queue_id = _queue_id;
    delete from lockstep.depth d where d.queue_id = _queue_id;
    delete from lockstep.deleted_group d where d.queue_id = _queue_id;
    delete from lockstep.deleted_queue d where d.id = _queue_id;
    return false;
end $$;
