-- Readers have the right to browse all queues by a rule, as others have theirs, and no tables.
insert into lockstep.role_rule (role, right_name, pattern) values ('lockstep_reader', 'browse', '*') on conflict do nothing;
