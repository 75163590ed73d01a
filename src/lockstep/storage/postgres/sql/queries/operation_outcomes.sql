-- What became of bundles, as far as anything is known.
select o.uuid, o.results, o.request_count from lockstep.operation o where o.uuid = any ($1::uuid[]) and o.results is not null
