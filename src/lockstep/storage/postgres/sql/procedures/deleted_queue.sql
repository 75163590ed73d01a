-- Deleting a queue: at once it is found by nobody, and what belonged to it goes in slices, each a transaction of its own and
-- bounded, however much there is.
--
-- Without its row in lockstep.queue, and its groups, nothing reaches what is left: names are looked up there, and who has an
-- id from before finds the row, or the group, gone. So a queue of the same name may be made at once, and has nothing to do
-- with it. A push that was on its way holds its partitions, and has committed before they are removed; nobody can begin one.
-- Locks: delete_queue the queue row. The slices the row of the deleted queue, so that they come one after the other, then
-- partition rows (by id), then what belongs to them.
-- Indexes: partition_queue, segment_queue; for tables of a partition's rows, the index that begins with the partition.

-- Deletes a queue; returns its id, for the slices that follow, or null if there is none.
create or replace function lockstep.delete_queue(_queue text, _at timestamptz default null) returns int language plpgsql as $$
declare
    _queue_id int;
begin
    if not lockstep.is_trusted() then perform lockstep.need_names('{configure}', array[_queue]); end if;
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

-- Removes the next partitions of a deleted queue, with all that belongs to them but the segments: at most _partitions, and
-- about _rows rows. Says how many partitions went, and whether there are more.
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
    -- Runs before trace events: who records one holds the run.
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
    -- A pop or an ack that was at work on them has changed rows that the statements above then passed over.
    _more := exists (select 1 from lockstep.cursor c where c.partition_id = any (_ids)) or exists (select 1 from lockstep.delivery d where d.partition_id = any (_ids));
    if not _more then
        delete from lockstep.partition p where p.id = any (_ids);
        _removed := cardinality(_ids);
        _more := exists (select 1 from lockstep.partition p where p.queue_id = _queue_id);
    end if;
end $$;

-- Removes segments of a deleted queue whose partitions are gone, with their trace entries, which are given as for a prune;
-- returns how many messages were in them.
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

-- Removes the rest, about _rows rows of it, and at last the deleted queue itself; says whether there is more.
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
    -- Once more: who found the queue just before it was deleted may have written here since.
    delete from lockstep.spark_position p where p.queue_id = _queue_id;
    delete from lockstep.subscription s where s.queue_id = _queue_id;
    delete from lockstep.depth d where d.queue_id = _queue_id;
    delete from lockstep.deleted_group d where d.queue_id = _queue_id;
    delete from lockstep.deleted_queue d where d.id = _queue_id;
    return false;
end $$;
