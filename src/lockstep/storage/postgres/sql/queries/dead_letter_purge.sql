-- Removes matching dead letters.
delete from lockstep.dead_letter d
where d.id in (select w.id from lockstep.dead_letters_where($1::bigint[], $2::text, $3::text, $4::text, $5::timestamptz, $6::timestamptz) w)
returning d.id
