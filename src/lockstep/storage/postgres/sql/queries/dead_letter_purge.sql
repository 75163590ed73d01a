-- Removes the next matching dead letters after an id.
select * from lockstep.purge_dead_letters($1::bigint[], $2::text, $3::text, $4::text, $5::timestamptz, $6::timestamptz, $7, $8)
