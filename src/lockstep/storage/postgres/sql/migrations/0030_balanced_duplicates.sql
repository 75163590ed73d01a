-- The place of a push depends on its transaction id, too.
drop function if exists lockstep.balanced_partition(text);
