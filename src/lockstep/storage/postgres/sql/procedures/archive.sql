-- The manifest of archives: the files that make up an archive. A reader reads only files of committed batches, so that
-- each batch is present exactly once and completely, or not at all.

-- Only one run at a time writes to an archive: takes a session lock. False if another run holds it. The session of a
-- crashed run holds the lock for a moment longer; this waits for that.
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

-- Begins a batch of a query, or finds it if it was begun before; says whether it is already committed.
create or replace function lockstep.archive_begin(_archive text, _query text, _batch bigint, out _id bigint, out _committed boolean) language plpgsql as $$
begin
    insert into lockstep.archive_batch (archive, query, batch) values (_archive, _query, _batch) on conflict do nothing;
    select b.id, b.committed_at is not null into _id, _committed
    from lockstep.archive_batch b where b.archive = _archive and b.query = _query and b.batch = _batch;
end $$;

-- Records the files that a batch is about to write, so that they can be found if it is never committed.
create or replace function lockstep.archive_stage(
    _batch_id bigint, _paths text[], _queues text[], _days date[], _messages bigint[], _bytes bigint[], _first_at timestamptz[], _last_at timestamptz[]
) returns void language sql as $$
    insert into lockstep.archive_file (batch_id, path, queue, day, messages, bytes, first_at, last_at)
    select _batch_id, t.* from unnest(_paths, _queues, _days, _messages, _bytes, _first_at, _last_at) t
$$;

-- Adds a batch to its archive. With _alone, everything else leaves the archive at the same moment; returns the paths of
-- files that are no longer part of it.
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

-- Forgets files that have been deleted. The batches stay begun and keep their ids.
create or replace function lockstep.archive_discard(_archive text) returns void language sql as $$
    delete from lockstep.archive_file f using lockstep.archive_batch b
    where b.archive = _archive and b.committed_at is null and f.batch_id = b.id
$$;

-- The files of an archive in the order of their batches; optionally only those of some queues, and with messages
-- created from _from until before _to.
create or replace function lockstep.archive_files(_archive text, _queues text[], _from timestamptz, _to timestamptz)
returns table (batch_id bigint, path text, queue text, messages bigint, bytes bigint) language sql stable as $$
    select f.batch_id, f.path, f.queue, f.messages, f.bytes
    from lockstep.archive_batch b join lockstep.archive_file f on f.batch_id = b.id
    where b.archive = _archive and b.committed_at is not null and f.removed_at is null
      and (_queues is null or f.queue = any (_queues))
      and (_from is null or f.last_at >= _from) and (_to is null or f.first_at < _to)
    order by f.batch_id, f.path
$$;

-- The settings that the runs of an archive keep; no row if it has never recorded any.
create or replace function lockstep.archive_settings(_archive text)
returns table (format text, payload_schema text, table_name text, catalog text) language sql stable as $$
    select a.format, a.payload_schema, a.table_name, a.catalog from lockstep.archive a where a.location = _archive
$$;

create or replace function lockstep.archive_keep_settings(
    _archive text, _format text, _payload_schema text, _table_name text, _catalog text
) returns void language sql as $$
    insert into lockstep.archive (location, format, payload_schema, table_name, catalog)
    values (_archive, _format, _payload_schema, _table_name, _catalog)
    on conflict (location) do update
    set format = excluded.format, payload_schema = excluded.payload_schema, table_name = excluded.table_name, catalog = excluded.catalog
$$;

-- All files of an archive, as a table publishes them.
create or replace function lockstep.archive_table_files(_archive text)
returns table (path text, queue text, day date, messages bigint, bytes bigint, first_at timestamptz, last_at timestamptz) language sql stable as $$
    select f.path, f.queue, f.day, f.messages, f.bytes, f.first_at, f.last_at
    from lockstep.archive_batch b join lockstep.archive_file f on f.batch_id = b.id
    where b.archive = _archive and b.committed_at is not null and f.removed_at is null
    order by f.batch_id, f.path
$$;

-- Removes the files of days before _day from the archive; returns their number and contents.
create or replace function lockstep.archive_expire(
    _archive text, _day date, out _files bigint, out _messages bigint, out _bytes bigint
) language sql as $$
    with expired as (
        update lockstep.archive_file f set removed_at = clock_timestamp()
        from lockstep.archive_batch b
        where b.archive = _archive and b.committed_at is not null and f.batch_id = b.id and f.day < _day and f.removed_at is null
        returning f.messages, f.bytes
    )
    select count(*), coalesce(sum(messages), 0)::bigint, coalesce(sum(bytes), 0)::bigint from expired
$$;

-- Adds a batch to its archive in place of other files with the same messages, at the same moment. All of those files
-- must still be in the archive.
create or replace function lockstep.archive_merge(_batch_id bigint, _paths text[]) returns void language plpgsql as $$
declare
    _replaced bigint;
begin
    update lockstep.archive_file f set removed_at = clock_timestamp()
    from lockstep.archive_batch b join lockstep.archive_batch o on o.archive = b.archive and o.committed_at is not null
    where b.id = _batch_id and f.batch_id = o.id and f.path = any (_paths) and f.removed_at is null;
    get diagnostics _replaced = row_count;
    if _replaced <> cardinality(_paths) then
        raise exception 'of % files to merge, % are in the archive', cardinality(_paths), _replaced using errcode = 'LS007';
    end if;
    perform lockstep.archive_commit(_batch_id, false);
end $$;

-- The files that left the archive at least _seconds ago.
create or replace function lockstep.archive_removed(_archive text, _seconds double precision) returns table (path text) language sql stable as $$
    select f.path from lockstep.archive_batch b join lockstep.archive_file f on f.batch_id = b.id
    where b.archive = _archive and f.removed_at <= clock_timestamp() - make_interval(secs => _seconds)
$$;

-- Forgets files that have been deleted.
create or replace function lockstep.archive_forget(_archive text, _paths text[]) returns void language sql as $$
    delete from lockstep.archive_file f using lockstep.archive_batch b
    where b.archive = _archive and f.batch_id = b.id and f.path = any (_paths) and f.removed_at is not null
$$;
