-- Statistics of the database kept by PostgreSQL itself.
select current_setting('server_version') as version, pg_database_size(d.datid) as bytes, d.numbackends as connections,
       current_setting('max_connections')::int as connections_max,
       case when d.blks_hit + d.blks_read > 0 then d.blks_hit::float8 / (d.blks_hit + d.blks_read) end as cache_hit_rate,
       d.xact_commit as commits, d.xact_rollback as rollbacks, d.deadlocks
from pg_stat_database d where d.datname = current_database()
