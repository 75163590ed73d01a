-- Gives the role lockstep the ownership of everything that it created in this database while it was the superuser: the
-- database, schemas, relations, routines and types. 16384 is the first object id of user objects. No empty lines: an
-- empty line ends a command here.
do $$
declare
    _statement text;
begin
    for _statement in
        select format('alter schema %I owner to lockstep', n.nspname) from pg_namespace n
        where n.nspowner = 10 and n.oid >= 16384 and not starts_with(n.nspname, 'pg_')
        union all
        select format(
            'alter %s %s owner to lockstep',
            case c.relkind when 'S' then 'sequence' when 'v' then 'view' when 'm' then 'materialized view' when 'f' then 'foreign table' else 'table' end,
            c.oid::regclass)
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where c.relowner = 10 and c.oid >= 16384 and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S') and not starts_with(n.nspname, 'pg_')
          and not exists (
              select 1 from pg_depend d
              where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype in ('a', 'i', 'e') and d.refobjid >= 16384)
        union all
        select format('alter routine %s owner to lockstep', p.oid::regprocedure) from pg_proc p
        where p.proowner = 10 and p.oid >= 16384
          and not exists (select 1 from pg_depend d where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')
        union all
        select format('alter type %s owner to lockstep', t.oid::regtype) from pg_type t left join pg_class c on c.oid = t.typrelid
        where t.typowner = 10 and t.oid >= 16384 and (t.typtype in ('d', 'e', 'r') or c.relkind = 'c')
          and not exists (select 1 from pg_depend d where d.classid = 'pg_type'::regclass and d.objid = t.oid and d.deptype = 'e')
    loop
        execute _statement;
    end loop;
    execute format('alter database %I owner to lockstep', current_database());
end $$;
