-- The manifest of archives: which files make up an archive. A reader takes only the files of committed batches, so that a
-- batch is there wholly or not at all, and once.

-- One run at a time writes to an archive: the lock is the session's. False if another has it. One that died has it for a
-- moment longer, which is waited for.
create or replace function lockstep.archive_lock(_archive text) returns boolean language plpgsql as $$
begin
    perform set_config('lock_timeout', '5s', true);
    perform pg_advisory_lock(lockstep.archive_key(_archive));
    return true;
exception when lock_not_available then
    return false;
end $$;

create or replace function lockstep.archive_unlock(_archive text) returns void language sql as $$
    select pg_advisory_unlock(lockstep.archive_key(_archive))
$$;

create or replace function lockstep.archive_key(_archive text) returns bigint language sql immutable as $$
    select hashtextextended('lockstep archive ' || _archive, 0)
$$;

-- Begins a batch of a query, or finds it begun; says whether it is committed already.
create or replace function lockstep.archive_begin(_archive text, _query text, _batch bigint, out _id bigint, out _committed boolean) language plpgsql as $$
begin
    insert into lockstep.archive_batch (archive, query, batch) values (_archive, _query, _batch) on conflict do nothing;
    select b.id, b.committed_at is not null into _id, _committed
    from lockstep.archive_batch b where b.archive = _archive and b.query = _query and b.batch = _batch;
end $$;

-- Notes the files that a batch is about to have, so that they are found again if it is never committed.
create or replace function lockstep.archive_stage(
    _batch_id bigint, _paths text[], _queues text[], _days date[], _messages bigint[], _bytes bigint[], _first_at timestamptz[], _last_at timestamptz[]
) returns void language sql as $$
    insert into lockstep.archive_file (batch_id, path, queue, day, messages, bytes, first_at, last_at)
    select _batch_id, t.* from unnest(_paths, _queues, _days, _messages, _bytes, _first_at, _last_at) t
$$;

-- Makes a batch part of its archive. With _alone everything else leaves the archive in the same moment; returns the paths
-- of the files that are no longer in it.
create or replace function lockstep.archive_commit(_batch_id bigint, _alone boolean) returns text[] language plpgsql as $$
declare
    _gone text[] := '{}';
begin
    update lockstep.archive_batch b
    set committed_at = clock_timestamp(), messages = coalesce((select sum(f.messages) from lockstep.archive_file f where f.batch_id = b.id), 0)
    where b.id = _batch_id;
    if _alone then
        select coalesce(array_agg(f.path), '{}') into _gone
        from lockstep.archive_batch b
        join lockstep.archive_batch o on o.archive = b.archive and o.id <> b.id
        join lockstep.archive_file f on f.batch_id = o.id
        where b.id = _batch_id;
        delete from lockstep.archive_batch o using lockstep.archive_batch b
        where b.id = _batch_id and o.archive = b.archive and o.id <> b.id;
    end if;
    return _gone;
end $$;

-- The files of batches that were begun and never committed.
create or replace function lockstep.archive_left_over(_archive text) returns table (batch_id bigint, path text) language sql stable as $$
    select f.batch_id, f.path from lockstep.archive_batch b join lockstep.archive_file f on f.batch_id = b.id
    where b.archive = _archive and b.committed_at is null
$$;

-- The files are gone: forget them. The batches stay begun, and keep their ids.
create or replace function lockstep.archive_discard(_archive text) returns void language sql as $$
    delete from lockstep.archive_file f using lockstep.archive_batch b
    where b.archive = _archive and b.committed_at is null and f.batch_id = b.id
$$;

-- The files of an archive in the order of their batches; of some queues, and with messages created at or after _from and
-- before _to.
create or replace function lockstep.archive_files(_archive text, _queues text[], _from timestamptz, _to timestamptz)
returns table (batch_id bigint, path text, queue text, messages bigint, bytes bigint) language sql stable as $$
    select f.batch_id, f.path, f.queue, f.messages, f.bytes
    from lockstep.archive_batch b join lockstep.archive_file f on f.batch_id = b.id
    where b.archive = _archive and b.committed_at is not null and (_queues is null or f.queue = any (_queues))
      and (_from is null or f.last_at >= _from) and (_to is null or f.first_at < _to)
    order by f.batch_id, f.path
$$;
