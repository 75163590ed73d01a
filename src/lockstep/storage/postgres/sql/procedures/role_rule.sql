-- Rights of database roles: which functions they may call, and for which queues.
--
-- An application's role has no right on tables. It may execute some functions, which run with the rights of the
-- schema's owner and first check that the caller has the right on each queue of the call, however the queue is
-- identified. The caller is the role set in the session, or else the login role; within such a function current_user is
-- the owner. Roles that may write the tables, such as the owner and lockstep_server, are not checked: they could do
-- anything anyway.
-- Locks: none.
-- Index: role_rule_pkey.

create or replace function lockstep.caller() returns name language sql stable as $$
    select case when current_setting('role') = 'none' then session_user else current_setting('role')::name end
$$;

create or replace function lockstep.is_trusted() returns boolean language sql stable as $$
    select has_table_privilege(lockstep.caller(), 'lockstep.segment', 'insert')
$$;

-- Whether the caller, or a role that it is a member of, has one of the rights on a queue.
create or replace function lockstep.may(_rights text[], _queue text) returns boolean language sql stable as $$
    select exists (
        select 1 from lockstep.role_rule r
        where (r.right_name = any (_rights) or r.right_name = 'admin' or (r.right_name = 'configure' and 'manage' = any (_rights)))
          and _queue like r.queue_like and pg_has_role(lockstep.caller(), to_regrole(quote_ident(r.role)), 'usage')
    )
$$;

-- A copy of a dying message goes to the dead queue of its queue; a role that consumes from the queue may push to its
-- dead queue.
create or replace function lockstep.may_push(_queue text) returns boolean language sql stable as $$
    select lockstep.may('{push}', _queue) or exists (
        select 1 from lockstep.queue d join lockstep.queue q on q.dead_queue_id = d.id
        where d.name = _queue and lockstep.may('{pop}', q.name))
$$;

-- Raises unless the caller has one of the rights on all of the queues. SQLSTATE LS009, without the names: a caller that
-- gave an id should not learn its queue.
create or replace function lockstep.need_names(_rights text[], _queues text[]) returns void language plpgsql stable as $$
begin
    if exists (
        select 1 from (select distinct unnest(_queues) as name) q
        where not case when _rights = '{push}' then lockstep.may_push(q.name) else lockstep.may(_rights, q.name) end)
    then
        raise exception 'Insufficient permissions: role % needs the right % on all queues of the call',
            lockstep.caller(), array_to_string(_rights, ' or ') using errcode = 'LS009';
    end if;
end $$;

-- The same for queues given by ids; an id that does not exist belongs to no queue. Every push and pop runs this, and nearly all
-- are about one queue: that case has simple statements, which PostgreSQL plans once and starts quickly. Here and below: an array
-- of the caller's may begin at any index, or have several dimensions, so a[1] may be null although the array has elements.
create or replace function lockstep.need_places(_rights text[], _queue_ids int[], _partition_ids bigint[] default '{}') returns void language plpgsql stable as $$
declare
    _caller name := lockstep.caller();
    _queue_id int := _queue_ids[1];
    _missing text[];
begin
    if cardinality(_queue_ids) = 0 then
        select p.queue_id into _queue_id from lockstep.partition p where p.id = _partition_ids[1];
    end if;
    if (cardinality(_queue_ids) = 0 or _queue_id = all (_queue_ids))
       and exists (
           select 1 from lockstep.queue q join lockstep.role_rule r on q.name like r.queue_like
           where q.id = _queue_id
             and (r.right_name = any (_rights) or r.right_name = 'admin' or (r.right_name = 'configure' and 'manage' = any (_rights)))
             and pg_has_role(_caller, to_regrole(quote_ident(r.role)), 'usage'))
       and not exists (select 1 from lockstep.partition p where p.id = any (_partition_ids) and p.queue_id <> _queue_id)
    then
        return;
    end if;
    _missing := array(
        select q.name
        from (
            select distinct unnest(_queue_ids)
            union
            select p.queue_id from unnest(_partition_ids) t (id)
            cross join lateral (select p.queue_id from lockstep.partition p where p.id = t.id limit 1) p
        ) i (id)
        cross join lateral (select q.name from lockstep.queue q where q.id = i.id limit 1) q
        where not exists (
            select 1 from lockstep.role_rule r
            where (r.right_name = any (_rights) or r.right_name = 'admin' or (r.right_name = 'configure' and 'manage' = any (_rights)))
              and q.name like r.queue_like and pg_has_role(_caller, to_regrole(quote_ident(r.role)), 'usage')));
    if _missing <> '{}' then
        perform lockstep.need_names(_rights, _missing);
    end if;
end $$;

create or replace function lockstep.need_groups(_rights text[], _group_ids int[], _partition_ids bigint[] default '{}') returns void language plpgsql stable as $$
begin
    if cardinality(_group_ids) = 1 and _group_ids[1] is not null then
        perform lockstep.need_places(_rights, array(select g.queue_id from lockstep.consumer_group g where g.id = _group_ids[1]), _partition_ids);
        return;
    end if;
    perform lockstep.need_places(_rights, array(
        select g.queue_id from unnest(_group_ids) t (id)
        cross join lateral (select g.queue_id from lockstep.consumer_group g where g.id = t.id limit 1) g), _partition_ids);
end $$;

create or replace function lockstep.need_segments(_rights text[], _segment_ids bigint[]) returns void language plpgsql stable as $$
begin
    if cardinality(_segment_ids) = 1 and _segment_ids[1] is not null then
        perform lockstep.need_places(_rights, array(select s.queue_id from lockstep.segment s where s.id = _segment_ids[1]));
        return;
    end if;
    perform lockstep.need_places(_rights, array(
        select s.queue_id from unnest(_segment_ids) t (id)
        cross join lateral (select s.queue_id from lockstep.segment s where s.id = t.id limit 1) s));
end $$;

-- By lease, and by partition where that is not null.
create or replace function lockstep.need_leases(
    _rights text[], _lease_ids uuid[], _partition_ids bigint[] default '{}', _queue_ids int[] default '{}'
) returns void language plpgsql stable as $$
begin
    perform lockstep.need_places(_rights, _queue_ids, _partition_ids
        || array(select c.partition_id from lockstep.cursor c where c.lease_id = any (_lease_ids))
        || array(select d.partition_id from lockstep.delivery d where d.lease_id = any (_lease_ids)));
end $$;

-- Raises unless the times of a caller, some of which may be null, can be read by every client. One that cannot would break the
-- lists of all queues, and what looks for the next time of any of them.
create or replace function lockstep.check_times(_times timestamptz[]) returns void language plpgsql immutable as $$
begin
    if not coalesce('0001-01-02 00:00:00+00' <= all (_times), true) or not coalesce('9999-12-30 00:00:00+00' >= all (_times), true) then
        raise exception 'a time of the call is out of range' using errcode = 'LS004';
    end if;
end $$;

-- The same for lengths of time in milliseconds: at most ten years.
create or replace function lockstep.check_spans(_spans bigint[]) returns void language plpgsql immutable as $$
begin
    if not coalesce(316224000000 >= all (_spans), true) or not coalesce(-316224000000 <= all (_spans), true) then
        raise exception 'a length of time of the call is out of range' using errcode = 'LS004';
    end if;
end $$;

-- The functions that a right covers. The right `browse` covers the views as well (renew_role).
create or replace function lockstep.functions_for(_right text) returns text[] language plpgsql stable as $$
begin
    return case _right
        when 'push' then array[
            'push', 'resolve', 'mark_expiring', 'push_segments', 'push_run', 'push_runs', 'schedule', 'balanced_partition',
            'balanced_over', 'partition_balance', 'occupancy', 'notify_pushed', 'find_queue', 'find_partition',
            'lock_for_transaction', 'schema_state']
        when 'pop' then array[
            'find_queue', 'find_partition', 'find_group', 'group_room', 'subscribe', 'note_first_poll', 'use_first_poll', 'place_for_pop', 'await_slice',
            'place_slice', 'pop', 'shared_pop', 'next', 'load_segments', 'ack_leases', 'ack_items', 'shared_complete', 'renew', 'hold_leases', 'due_in', 'due_in_labels', 'queues_by_priority',
            'lock_for_transaction', 'take_forwards', 'note_copies', 'schema_state',
            'resolve', 'mark_expiring', 'push_segments', 'push_run', 'push_runs', 'occupancy']
        when 'browse' then array[
            'may_read', 'as_text', 'message_id', 'read_stored', 'read_last_seq', 'read_next_seq', 'read_first_run', 'read_run_of',
            'read_cursors', 'read_cursor', 'read_done_upto', 'read_behind', 'read_held', 'read_head_run', 'read_due_again', 'schema_state']
        when 'manage' then array['configure', 'seek', 'find_queue', 'find_partition', 'find_group', 'schema_state']
        when 'configure' then lockstep.functions_for('manage') || array['delete_queue', 'delete_group']
        when 'admin' then
            lockstep.functions_for('push') || lockstep.functions_for('pop') || lockstep.functions_for('browse')
            || lockstep.functions_for('configure') || array['stop_encryption']
        else '{}'
    end;
end $$;

-- The version of the schema, and the checksum of these functions: for roles without tables.
create or replace function lockstep.schema_state(out _version int, out _checksum text) language sql stable as $$
    select (select coalesce(max(m.version), 0) from lockstep.migration m), (select p.checksum from lockstep.procedures p)
$$;

-- Grants a role the right on the queues of a pattern; returns whether this changed anything. Only the owner of the
-- schema may call this.
create or replace function lockstep.grant_right(_right text, _pattern text, _role text) returns boolean language plpgsql as $$
begin
    if to_regrole(quote_ident(_role)) is null then
        raise exception 'there is no role %', quote_ident(_role) using errcode = 'LS004';
    end if;
    insert into lockstep.role_rule (role, right_name, pattern) values (_role, _right, _pattern) on conflict do nothing;
    if not found then
        return false;
    end if;
    perform lockstep.renew_role(_role);
    return true;
end $$;

-- Revokes a right from a role; returns whether the role had it.
create or replace function lockstep.revoke_right(_right text, _pattern text, _role text) returns boolean language plpgsql as $$
declare
    _had boolean;
begin
    delete from lockstep.role_rule r where r.role = _role and r.right_name = _right and r.pattern = _pattern;
    _had := found;
    perform lockstep.renew_role(_role);
    return _had;
end $$;

-- Lets a role execute the functions that its rules cover, and no other functions that rules can cover. Lets it read the views if
-- a rule covers them; otherwise not, unless it may read the tables.
create or replace function lockstep.renew_role(_role text) returns void language plpgsql as $$
declare
    _wanted text[];
    _function record;
    _view regclass;
begin
    if to_regrole(quote_ident(_role)) is null then
        return;
    end if;
    select coalesce(array_agg(distinct f.name), '{}') into _wanted
    from lockstep.role_rule r cross join lateral unnest(lockstep.functions_for(r.right_name)) f (name) where r.role = _role;
    for _function in
        select p.oid::regprocedure as called, p.proname = any (_wanted) as wanted from pg_proc p
        where p.pronamespace = 'lockstep'::regnamespace and p.proname = any (lockstep.functions_for('admin'))
    loop
        execute format(
            case when _function.wanted then 'grant execute on function %s to %I' else 'revoke execute on function %s from %I' end,
            _function.called, _role);
    end loop;
    for _view in
        select c.oid::regclass from pg_class c where c.relnamespace = 'lockstep'::regnamespace and c.relkind = 'v'
    loop
        if 'may_read' = any (_wanted) then
            execute format('grant select on %s to %I', _view, _role);
        elsif not has_table_privilege(_role, 'lockstep.segment', 'select') then
            execute format('revoke select on %s from %I', _view, _role);
        end if;
    end loop;
    if _wanted <> '{}' then
        execute format('grant usage on schema lockstep to %I', _role);
    end if;
end $$;
