-- How many dead letters match.
select lockstep.dead_letter_total($1::bigint[], $2::text, $3::text, $4::text, $5::timestamptz, $6::timestamptz)
