-- The database as PostgreSQL itself counts it.
select current_setting('server_version'), pg_database_size(d.datid), d.numbackends, current_setting('max_connections')::int,
       case when d.blks_hit + d.blks_read > 0 then d.blks_hit::float8 / (d.blks_hit + d.blks_read) end,
       d.xact_commit, d.xact_rollback, d.deadlocks
from pg_stat_database d where d.datname = current_database()
