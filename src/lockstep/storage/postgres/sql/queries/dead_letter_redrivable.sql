-- Of the next $8 dead letters after an id: the first $9 that match and may be redriven, and how far this looked; null at
-- the end. $10: includes those whose copies queue mode has completed.
with walked as materialized (
    select d.* from lockstep.dead_letters_after($1::bigint[], $2::text, $7::bigint, $8) d
), looked as (
    select d.* from walked d where lockstep.is_letter_of(d, $2, $3::text, $4::text, $5::timestamptz, $6::timestamptz)
)
select array(
    select d.id from looked d
    where ($10 or not d.copy_done)
      and (d.copy_seq is null or (
          ($10 or not lockstep.is_copy_done(d.copy_partition_id, d.copy_seq))
          and not lockstep.is_under_lease(d.copy_partition_id, d.copy_seq, coalesce($11::timestamptz, clock_timestamp()))))
    order by d.id limit $9
), (select case when count(*) = $8 then max(d.id) end from walked d)
