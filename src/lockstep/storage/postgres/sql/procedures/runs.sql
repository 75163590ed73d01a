-- How runs are found, for queries and procedures that need the same ones. The planner inlines these functions.

-- The remaining runs of a segment, by its manifest. `offset 0` keeps the planner from scanning all runs for many
-- segments.
create or replace function lockstep.runs_of(_segment_id bigint, _partition_ids bigint[], _first_seqs bigint[], _counts int[])
returns setof lockstep.run language sql stable as $$
    select r.*
    from unnest(_partition_ids, _first_seqs, _counts) m (partition_id, first_seq, n)
    cross join lateral (
        select r.* from lockstep.run r
        where r.partition_id = m.partition_id and r.segment_id = _segment_id and r.first_seq between m.first_seq and m.first_seq + m.n - 1
        offset 0
    ) r
$$;

-- The first runs of a partition after a seq, oldest first, with when their messages were created; what was removed has no segment.
-- Indexes: run_pkey, segment_pkey.
create or replace function lockstep.runs_after(_partition_id bigint, _after bigint, _most bigint)
returns table (first_seq bigint, last_seq bigint, segment_id bigint, ordinal int, created_at timestamptz) language sql stable as $$
    select r.first_seq, r.last_seq, r.segment_id, r.ordinal, s.created_at
    from lockstep.run r left join lockstep.segment s on s.id = r.segment_id
    where r.partition_id = _partition_id and r.last_seq > _after
      and r.first_seq >= case when _after = 0 then 0 else coalesce((
          select f.first_seq from lockstep.run f where f.partition_id = _partition_id and f.first_seq <= _after + 1
          order by f.first_seq desc limit 1), 0) end
    order by r.first_seq limit _most
$$;
