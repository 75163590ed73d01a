-- The last batch of a query has to be known while its checkpoint may come back, and not for ever.
alter table lockstep.spark_batch add column kept_until timestamptz;
update lockstep.spark_batch set kept_until = committed_at + interval '365 days';
alter table lockstep.spark_batch alter kept_until set not null;

-- When the last batch of some query was last forgotten: from then on a query that is not known may be one that was.
alter table lockstep.system add column spark_forgotten_at timestamptz;

drop function if exists lockstep.spark_begin(text, bigint, bigint, timestamptz);
