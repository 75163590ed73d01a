-- All bytes ever written to the WAL; null on a standby, which writes none.
select case when pg_is_in_recovery() then null else pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint end as wal_bytes
