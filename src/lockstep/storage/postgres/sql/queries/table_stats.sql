-- The tables of the schema, largest first.
select t.relname as name, pg_total_relation_size(t.relid) as bytes, t.n_live_tup as rows_estimate, t.n_dead_tup as dead_rows_estimate
from pg_stat_user_tables t where t.schemaname = 'lockstep'
order by 2 desc, 1
