-- With which query and checkpoint a step ($1, $2) last ran, the last batch that it has written, and what it was then.
select s.query_id, s.checkpoint, s.batch_id, s.definition::text from lockstep.pipeline_step s where s.pipeline = $1 and s.step = $2
