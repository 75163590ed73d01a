-- What keeps PostgreSQL from removing dead rows or old WAL: open transactions of this database, prepared transactions,
-- and slots. For other roles' transactions, PostgreSQL limits what this role can see.
select * from (
    select 'transaction' as kind,
           concat_ws(' ', a.usename, nullif(a.application_name, ''), 'pid ' || a.pid, 'from ' || host(a.client_addr)) as owner,
           a.state, extract(epoch from clock_timestamp() - a.xact_start)::float8 as age_seconds, null::bigint as kept_bytes
    from pg_stat_activity a
    where a.datname = current_database() and a.xact_start is not null and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
      and a.xact_start < clock_timestamp() - interval '1 second'
    union all
    select 'prepared_transaction', p.gid, null, extract(epoch from clock_timestamp() - p.prepared)::float8, null
    from pg_prepared_xacts p where p.database = current_database()
    union all
    select 'replication_slot', s.slot_name, case when s.active then 'active' else 'inactive' end, null,
           case when pg_is_in_recovery() then null else pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint end
    from pg_replication_slots s
) h
order by h.age_seconds desc nulls last, h.owner limit 100
