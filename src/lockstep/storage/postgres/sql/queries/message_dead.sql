-- Which messages of partitions are dead letters.
select distinct d.partition_id, d.seq from lockstep.dead_letter d
where d.partition_id = any ($1::bigint[]) and d.seq between $2 and $3
