-- The dead letters that a filter names; what is null filters nothing.
create or replace function lockstep.dead_letters_where(
    _ids bigint[], _queue text, _partition text, _group text, _from_at timestamptz, _to_at timestamptz
) returns setof lockstep.dead_letter language sql stable as $$
    select d.* from lockstep.dead_letter d
    join lockstep.queue q on q.id = d.queue_id
    join lockstep.partition p on p.id = d.partition_id
    where (_ids is null or d.id = any (_ids)) and (_queue is null or q.name = _queue) and (_partition is null or p.name = _partition)
      and (_group is null or d.group_name = _group) and (_from_at is null or d.failed_at >= _from_at) and (_to_at is null or d.failed_at < _to_at)
$$;
