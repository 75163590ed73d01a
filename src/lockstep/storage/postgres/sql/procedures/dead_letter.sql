-- The dead letters that a filter selects; a null filters nothing. A single plan serves every filter: the id range lets
-- the index find a few ids directly.
create or replace function lockstep.dead_letters_where(
    _ids bigint[], _queue text, _partition text, _group text, _from_at timestamptz, _to_at timestamptz
) returns setof lockstep.dead_letter language sql stable as $$
    select d.* from lockstep.dead_letter d
    where d.id >= coalesce((select min(i) from unnest(_ids) i), 0) and d.id <= coalesce((select max(i) from unnest(_ids) i), 9223372036854775807)
      and (_ids is null or d.id = any (_ids))
      and exists (select 1 from lockstep.queue q where q.id = d.queue_id)  -- leftovers of a queue that is being deleted have no queue
      and (_queue is null or d.queue_id = (select q.id from lockstep.queue q where q.name = _queue))
      and (_partition is null or (select p.name from lockstep.partition p where p.id = d.partition_id) = _partition)
      and (_group is null or d.group_name = _group) and (_from_at is null or d.failed_at >= _from_at) and (_to_at is null or d.failed_at < _to_at)
$$;

-- One page of the dead letters that a filter selects, newest first (failed_at, then id). Each access path is a separate
-- statement, because each has its own index: by ids, by queue and time, by time.
-- Indexes: dead_letter_pkey, dead_letter_queue, dead_letter_time.
create or replace function lockstep.dead_letter_page(
    _ids bigint[], _queue text, _partition text, _group text, _from_at timestamptz, _to_at timestamptz, _limit bigint, _offset bigint
) returns setof lockstep.dead_letter language plpgsql stable as $$
declare
    _queue_id int := (select q.id from lockstep.queue q where q.name = _queue);
begin
    if _ids is not null then
        return query select d.* from lockstep.dead_letters_where(_ids, _queue, _partition, _group, _from_at, _to_at) d
        order by d.failed_at desc, d.id desc limit _limit offset _offset;
    elsif _queue is not null then
        return query select d.* from lockstep.dead_letter d
        where d.queue_id >= _queue_id and d.queue_id <= _queue_id  -- as in dead_letters_after: only one index has all of it
          and (d.queue_id, d.failed_at) >= (_queue_id, coalesce(_from_at, '-infinity'))
          and (d.queue_id, d.failed_at) <= (_queue_id, coalesce(_to_at, 'infinity'))
          and (_to_at is null or d.failed_at < _to_at) and (_group is null or d.group_name = _group)
          and (_partition is null or (select p.name from lockstep.partition p where p.id = d.partition_id) = _partition)
        order by d.queue_id desc, d.failed_at desc, d.id desc limit _limit offset _offset;
    else
        return query select d.* from lockstep.dead_letter d
        where d.failed_at >= coalesce(_from_at, '-infinity') and d.failed_at <= coalesce(_to_at, 'infinity')
          and (_to_at is null or d.failed_at < _to_at) and (_group is null or d.group_name = _group)
          and (_partition is null or (select p.name from lockstep.partition p where p.id = d.partition_id) = _partition)
          and exists (select 1 from lockstep.queue q where q.id = d.queue_id)
        order by d.failed_at desc, d.id desc limit _limit offset _offset;
    end if;
end $$;

-- The number of dead letters that a filter selects. Those of a queue are counted in an index, without reading rows if
-- the filter allows it.
create or replace function lockstep.dead_letter_total(
    _ids bigint[], _queue text, _partition text, _group text, _from_at timestamptz, _to_at timestamptz
) returns bigint language plpgsql stable as $$
declare
    _total bigint := 0;
    _one record;
begin
    if _ids is not null or _partition is not null then
        return (select count(*) from lockstep.dead_letters_where(_ids, _queue, _partition, _group, _from_at, _to_at));
    end if;
    for _one in select q.id from lockstep.queue q where _queue is null or q.name = _queue loop
        if _group is null then
            _total := _total + (
                select count(*) from lockstep.dead_letter d
                where d.queue_id >= _one.id and d.queue_id <= _one.id  -- as in dead_letter_page
                  and (d.queue_id, d.failed_at) >= (_one.id, coalesce(_from_at, '-infinity'))
                  and (d.queue_id, d.failed_at) <= (_one.id, coalesce(_to_at, 'infinity'))
                  and (_to_at is null or d.failed_at < _to_at));
        else
            _total := _total + (
                select count(*) from lockstep.dead_letter d
                where d.queue_id >= _one.id and d.queue_id <= _one.id  -- as in dead_letter_page
                  and (d.queue_id, d.failed_at) >= (_one.id, coalesce(_from_at, '-infinity'))
                  and (d.queue_id, d.failed_at) <= (_one.id, coalesce(_to_at, 'infinity'))
                  and (_to_at is null or d.failed_at < _to_at) and d.group_name = _group);
        end if;
    end loop;
    return _total;
end $$;

-- The next dead letters after an id, by id: those of given ids, or of a queue, or all; at most _most, whatever else a filter
-- says. Each access path is a separate statement, because each has its own index.
-- Indexes: dead_letter_pkey, dead_letter_order.
create or replace function lockstep.dead_letters_after(_ids bigint[], _queue text, _after bigint, _most bigint)
returns setof lockstep.dead_letter language plpgsql stable as $$
declare
    _queue_id int := (select q.id from lockstep.queue q where q.name = _queue);
begin
    if _ids is not null then
        return query select d.* from lockstep.dead_letter d where d.id = any (_ids) and d.id > _after order by d.id limit _most;
    elsif _queue is not null then
        -- An order by queue, which an equality would make superfluous: another index has it then, with all other queues.
        return query select d.* from lockstep.dead_letter d
        where (d.queue_id, d.id) > (_queue_id, _after) and d.queue_id <= _queue_id order by d.queue_id, d.id limit _most;
    else
        return query select d.* from lockstep.dead_letter d where d.id > _after order by d.id limit _most;
    end if;
end $$;

-- Whether a filter selects a dead letter. Leftovers of a queue that is being deleted have no queue.
create or replace function lockstep.is_letter_of(
    _letter lockstep.dead_letter, _queue text, _partition text, _group text, _from_at timestamptz, _to_at timestamptz
) returns boolean language sql stable as $$
    select exists (select 1 from lockstep.queue q where q.id = (_letter).queue_id and (_queue is null or q.name = _queue))
       and (_partition is null or (select p.name from lockstep.partition p where p.id = (_letter).partition_id) = _partition)
       and (_group is null or (_letter).group_name = _group)
       and (_from_at is null or (_letter).failed_at >= _from_at) and (_to_at is null or (_letter).failed_at < _to_at)
$$;

-- Looks at the next _limit dead letters after an id, and removes those that a filter selects. Returns their number, and the
-- last id that it looked at; null at the end.
create or replace function lockstep.purge_dead_letters(
    _ids bigint[], _queue text, _partition text, _group text, _from_at timestamptz, _to_at timestamptz, _after bigint, _limit int,
    out _purged bigint, out _last bigint
) language plpgsql as $$
declare
    _going bigint[];
    _looked bigint;
begin
    select array_agg(d.id) filter (where lockstep.is_letter_of(d, _queue, _partition, _group, _from_at, _to_at)), count(*), max(d.id)
    into _going, _looked, _last
    from lockstep.dead_letters_after(_ids, _queue, _after, _limit) d;
    delete from lockstep.dead_letter d where d.id = any (_going);
    get diagnostics _purged = row_count;
    if _looked < _limit then
        _last := null;
    end if;
end $$;
