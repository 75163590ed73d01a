-- The state of a query on one partition, by key.
select s.key, s.value::text as value, s.updated_at from lockstep.stream_state s
where s.query_id = $1 and s.partition_id = $2 and (cardinality($3::text[]) = 0 or s.key = any ($3))
  and ($4::text is null or starts_with(s.key, $4)) and ($5::double precision is null or s.window_end <= $5)
order by s.key limit $6
