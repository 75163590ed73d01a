-- How many messages of segments ($2) of some queues ($1) were removed since a time ($3) before all streams had read
-- them, from all partitions or only some ($4).
select coalesce(sum(n.messages), 0)::bigint from lockstep.spark_removal n
where n.queue_id = any ($1::int[]) and n.segment_id = any ($2::bigint[]) and n.removed_at >= $3::timestamptz
  and ($4::bigint[] is null or n.partition_id = any ($4::bigint[]))
