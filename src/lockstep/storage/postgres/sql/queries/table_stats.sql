-- The tables of the schema, the largest first.
select t.relname, pg_total_relation_size(t.relid), t.n_live_tup, t.n_dead_tup
from pg_stat_user_tables t where t.schemaname = 'lockstep'
order by 2 desc, 1
