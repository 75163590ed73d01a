-- The results of bundles, as far as they are known.
select o.uuid, o.results, o.request_count from lockstep.operation o where o.uuid = any ($1::uuid[]) and o.results is not null
