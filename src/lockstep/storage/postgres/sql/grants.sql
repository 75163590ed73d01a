-- What roles may do in the schema. Every migration runs this as the owner of the schema, after the procedures.
--
-- Nobody has anything by default: PUBLIC loses the rights that PostgreSQL grants on new functions. Roles belong to the
-- whole cluster; they are left out if the owner may not create them and nobody else has. procedures/role_rule.sql says
-- what rules grant.
do $$
declare
    _role text;
    _function regprocedure;
begin
    foreach _role in array array['lockstep_producer', 'lockstep_consumer', 'lockstep_reader', 'lockstep_admin', 'lockstep_server'] loop
        begin
            if not exists (select 1 from pg_roles r where r.rolname = _role) then
                execute format('create role %I nologin', _role);
            end if;
        exception
            when insufficient_privilege then null;
            when duplicate_object or unique_violation then null;  -- another database's migration came first
        end;
    end loop;

    -- Roles that may read or write our tables could execute everything while PUBLIC could; they keep that right.
    for _role in
        select distinct r.rolname from pg_class c cross join lateral aclexplode(c.relacl) a join pg_roles r on r.oid = a.grantee
        where c.oid = 'lockstep.queue'::regclass and a.grantee <> c.relowner and r.rolname not like 'lockstep\_%'
    loop
        execute format('grant execute on all functions in schema lockstep to %I', _role);
    end loop;
    revoke all on schema lockstep from public;
    revoke all on all tables in schema lockstep from public;
    revoke all on all sequences in schema lockstep from public;
    revoke all on all functions in schema lockstep from public;

    for _function in
        select p.oid::regprocedure from pg_proc p
        where p.pronamespace = 'lockstep'::regnamespace and p.proname = any (lockstep.functions_for('admin'))
          and p.provolatile <> 'i'  -- what reads nothing needs no rights, and is inlined without them
    loop
        execute format('alter function %s security definer', _function);
        execute format('alter function %s set search_path = pg_catalog, pg_temp', _function);
    end loop;
    -- They read the tables once.
    for _role in select r.rolname from pg_roles r where r.rolname in ('lockstep_reader', 'lockstep_admin') loop
        execute format('revoke all on all tables in schema lockstep from %I', _role);
        execute format('revoke all on all functions in schema lockstep from %I', _role);
    end loop;
    for _role in select distinct r.role from lockstep.role_rule r loop
        perform lockstep.renew_role(_role);
    end loop;
    if exists (select 1 from pg_roles r where r.rolname = 'lockstep_server') then
        grant usage on schema lockstep to lockstep_server;
        grant select, insert, update, delete on all tables in schema lockstep to lockstep_server;
        grant usage on all sequences in schema lockstep to lockstep_server;
        grant execute on all functions in schema lockstep to lockstep_server;
        revoke insert, update, delete on lockstep.role_rule from lockstep_server;
    end if;
end $$;
