-- How many messages of some queues ($1) after a place ($5, $6, $7) and up to a snapshot ($4) were removed since a time
-- ($3), from all partitions or only some ($2).
select coalesce(sum(n.messages), 0)::bigint from lockstep.spark_removal n
where n.queue_id = any ($1::int[]) and n.txid >= pg_snapshot_xmin($5::pg_snapshot) and n.removed_at >= $3::timestamptz
  and ($2::bigint[] is null or n.partition_id + 0 = any ($2::bigint[]))  -- found by transaction, not by partition
  and pg_visible_in_snapshot(n.txid, $4::pg_snapshot)
  and not lockstep.is_read($5::pg_snapshot, $6::pg_snapshot, $7::bigint, n.txid, n.segment_id)
