-- Trace events: recorded for a stored message, and removed with it.

-- Records an event; returns its id, or null if there is no such message.
-- Locks: the run that holds the message, in share mode, so that a removal of the message waits, and then removes the
-- event as well. Pushes and acks are not blocked. A removal of neighbours may have split the run in the meantime: then
-- the message is in another run, which the next attempt finds.
create or replace function lockstep.record_trace(
    _partition_id bigint, _transaction_id text, _event_type text, _group text, _worker text, _names text[], _data text, _at timestamptz
) returns bigint language plpgsql as $$
declare
    _now timestamptz := coalesce(_at, clock_timestamp());
    _seq bigint;
    _event_id bigint;
begin
    loop
        _seq := lockstep.resolve_seq(_partition_id, _transaction_id);
        if _seq is null then
            return null;
        end if;
        perform 1 from lockstep.run r
        where r.partition_id = _partition_id and r.segment_id is not null and r.last_seq >= _seq
          and r.first_seq = (select b.first_seq from lockstep.runs_between(_partition_id, _seq - 1, _seq) b)
        for share;
        exit when found;
    end loop;
    insert into lockstep.trace_event (partition_id, seq, transaction_id, event_type, group_name, worker, names, data, created_at)
    values (_partition_id, _seq, _transaction_id, _event_type, _group, _worker, _names, _data::json, _now)
    returning id into _event_id;
    insert into lockstep.trace_name (name, event_id, partition_id, seq, created_at)
    select t.name, _event_id, _partition_id, _seq, _now from unnest(_names) t (name);
    return _event_id;
end $$;

-- Removes the events of messages with seqs in [_from, _to], after those are removed.
create or replace function lockstep.remove_trace_events(_partition_id bigint, _from bigint, _to bigint) returns void language sql as $$
    delete from lockstep.trace_name n where n.partition_id = _partition_id and n.seq between _from and _to;
    delete from lockstep.trace_event e where e.partition_id = _partition_id and e.seq between _from and _to;
$$;
