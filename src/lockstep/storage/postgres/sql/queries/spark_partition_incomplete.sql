-- Which partitions ($1) lack messages between two seqs ($2, $3). From a run that begins there or before, a partition
-- has all seqs except those of runs that hold the place of removed messages: two probes per partition suffice.
select t.id from unnest($1::bigint[], $2::bigint[], $3::bigint[]) t (id, first_seq, last_seq)
where not exists (select 1 from lockstep.run r where r.partition_id = t.id and r.first_seq <= t.first_seq)
   or exists (
       select 1 from lockstep.run r
       where r.partition_id = t.id and r.segment_id is null and r.first_seq <= t.last_seq and r.last_seq >= t.first_seq
   )
