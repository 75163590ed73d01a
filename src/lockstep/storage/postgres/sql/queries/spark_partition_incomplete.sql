-- Which partitions ($1) lack messages between two seqs ($2, $3). A partition has all seqs from a run on that begins there or
-- before, except those of the runs that hold the place of removed ones: so two probes for each partition tell.
select t.id from unnest($1::bigint[], $2::bigint[], $3::bigint[]) t (id, first_seq, last_seq)
where not exists (select 1 from lockstep.run r where r.partition_id = t.id and r.first_seq <= t.first_seq)
   or exists (
       select 1 from lockstep.run r
       where r.partition_id = t.id and r.segment_id is null and r.first_seq <= t.last_seq and r.last_seq >= t.first_seq
   )
