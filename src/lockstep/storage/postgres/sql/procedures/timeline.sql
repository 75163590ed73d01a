-- Timelines: a standby that took over, or a restored backup, lacks the ids that the old server gave out last.

-- Moves every sequence of the schema ahead when the database is on another timeline than at the last call, so that no id is
-- given out twice. Returns whether it did.
-- The step is larger than anything that can have been lost: 10^12 ids, or 65,536 of queues and groups, whose ids are int. It
-- is twice that at most and random, because the record of an earlier step may be among what was lost. Near the end of a
-- sequence steps are a part of what is left, so that no number of restarts uses it up. Ids stay below 2^53, which JSON readers
-- need.
-- A database that was never on a known timeline has lost no ids that it has not drawn, so unused sequences stay at 1.
-- It has the rights of the owner of the schema: an application role may not move sequences.
-- Locks: the row of lockstep.system, only if the timeline is another one.
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
