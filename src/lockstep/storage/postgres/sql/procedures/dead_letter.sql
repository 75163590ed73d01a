-- The dead letters that a filter names; what is null filters nothing. One plan is for every filter: the range of the ids is
-- there for the index, so that few ids are found without a look at all.
create or replace function lockstep.dead_letters_where(
    _ids bigint[], _queue text, _partition text, _group text, _from_at timestamptz, _to_at timestamptz
) returns setof lockstep.dead_letter language sql stable as $$
    select d.* from lockstep.dead_letter d
    where d.id >= coalesce((select min(i) from unnest(_ids) i), 0) and d.id <= coalesce((select max(i) from unnest(_ids) i), 9223372036854775807)
      and (_ids is null or d.id = any (_ids))
      and exists (select 1 from lockstep.queue q where q.id = d.queue_id)  -- one that is being deleted has none
      and (_queue is null or d.queue_id = (select q.id from lockstep.queue q where q.name = _queue))
      and (_partition is null or (select p.name from lockstep.partition p where p.id = d.partition_id) = _partition)
      and (_group is null or d.group_name = _group) and (_from_at is null or d.failed_at >= _from_at) and (_to_at is null or d.failed_at < _to_at)
$$;
