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
        where d.queue_id = _queue_id
          and d.failed_at >= coalesce(_from_at, '-infinity') and d.failed_at <= coalesce(_to_at, 'infinity')
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
                where d.queue_id = _one.id and d.failed_at >= coalesce(_from_at, '-infinity') and d.failed_at <= coalesce(_to_at, 'infinity')
                  and (_to_at is null or d.failed_at < _to_at));
        else
            _total := _total + (
                select count(*) from lockstep.dead_letter d
                where d.queue_id = _one.id and d.failed_at >= coalesce(_from_at, '-infinity') and d.failed_at <= coalesce(_to_at, 'infinity')
                  and (_to_at is null or d.failed_at < _to_at) and d.group_name = _group);
        end if;
    end loop;
    return _total;
end $$;

-- Removes the next dead letters after an id that a filter selects, at most _limit. Returns their number and the last
-- id; null at the end.
create or replace function lockstep.purge_dead_letters(
    _ids bigint[], _queue text, _partition text, _group text, _from_at timestamptz, _to_at timestamptz, _after bigint, _limit int,
    out _purged bigint, out _last bigint
) language plpgsql as $$
declare
    _going bigint[] := array(
        select w.id from lockstep.dead_letters_where(_ids, _queue, _partition, _group, _from_at, _to_at) w
        where w.id > _after order by w.id limit _limit
    );
begin
    delete from lockstep.dead_letter d where d.id = any (_going);
    get diagnostics _purged = row_count;
    _last := case when cardinality(_going) = _limit then _going[_limit] end;
end $$;
