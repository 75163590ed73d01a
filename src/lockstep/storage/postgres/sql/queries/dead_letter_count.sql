-- How many dead letters match.
select count(*) from lockstep.dead_letters_where($1::bigint[], $2::text, $3::text, $4::text, $5::timestamptz, $6::timestamptz)
