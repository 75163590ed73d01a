-- The state of the database: its snapshot, time, role, identity and timeline, and whether queues ($1) hold segments of
-- another server. One statement, so that the search for foreign segments uses the returned snapshot.
select pg_current_snapshot()::text, clock_timestamp(), pg_is_in_recovery(),
       (select c.system_identifier from pg_control_system() c) || '/'
           || (select d.oid from pg_database d where d.datname = current_database()),
       case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end,
       exists (
           select 1 from lockstep.segment s
           where s.queue_id = any ($1::int[]) and s.txid >= pg_snapshot_xmax(pg_current_snapshot())
       )
