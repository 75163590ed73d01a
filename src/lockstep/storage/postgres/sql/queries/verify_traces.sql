-- The end of the next slice of trace entries after a trace, and its number of entries, which those of the last trace
-- may exceed.
select (array_agg(t.trace_id order by t.trace_id desc))[1], count(*) from (
    select t.trace_id from lockstep.trace_index t where t.trace_id > $1::uuid order by t.trace_id limit $2
) t
