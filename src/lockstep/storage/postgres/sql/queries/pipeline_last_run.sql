-- The query and checkpoint of the last run of a step ($1, $2), the last batch that it has written, and its definition
-- at that time.
select s.query_id, s.checkpoint, s.batch_id, s.definition::text from lockstep.pipeline_step s where s.pipeline = $1 and s.step = $2
