-- On which timeline of the database ids were last moved ahead (procedures/timeline.sql).
alter table lockstep.system add column timeline text;
