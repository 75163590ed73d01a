-- The partitions of the messages in segments, in the order of the messages.
select s.id, s.partition_ids, s.first_seqs, s.counts from lockstep.segment s where s.id = any ($1::bigint[])
