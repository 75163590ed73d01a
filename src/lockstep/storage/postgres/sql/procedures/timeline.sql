-- Timelines: a promoted standby or a restored backup lacks the last ids that the old server assigned.

-- Moves every sequence of the schema ahead if the database is on another timeline than at the last call, so that no id
-- is assigned twice. Returns whether it did. The step is larger than anything that can have been lost: 10^12 ids, or
-- 65,536 ids of queues and groups, which are int. It is random, up to twice that, because the record of an earlier step
-- may be lost as well. Near the end of a sequence a step is a fraction of the rest, so that no number of restarts
-- exhausts it. Ids stay below 2^53, as JSON readers require. A database that was never on a known timeline cannot have
-- lost ids that it has not drawn, so unused sequences stay at 1. Runs with the rights of the schema's owner: an
-- application role may not move sequences.
-- Locks: the row of lockstep.system, only if the timeline has changed.
create or replace function lockstep.provide_ids(_timeline text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    _before text;
begin
    perform 1 from lockstep.system s where s.timeline = _timeline;
    if found then
        return false;
    end if;
    perform lockstep.system(null);
    select s.timeline into _before from lockstep.system s for update;
    if _before = _timeline then
        return false;
    end if;
    perform setval(format('%I.%I', t.schemaname, t.sequencename)::regclass, t.last + floor(least(
        t.lost_max * (1 + random()), greatest(t.ceiling - t.last, 0) / 4096))::bigint)
    from (
        select s.schemaname, s.sequencename, coalesce(s.last_value, 1) as last,
               least(s.max_value, 9007199254740991) as ceiling,
               case when s.data_type = 'bigint'::regtype then 1e12 else 65536 end as lost_max
        from pg_sequences s
        where s.schemaname = 'lockstep' and (_before is not null or s.last_value is not null)
    ) t;
    update lockstep.system s set timeline = _timeline;
    return true;
end $$;
