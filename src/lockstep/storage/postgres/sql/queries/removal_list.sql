-- Removals from one queue or all, by time, queue and kind, after a place.
select r.at, r.queue, r.kind, r.messages, r.partitions
from lockstep.removal r
where ($1::text is null or r.queue = $1) and r.at >= coalesce($2::timestamptz, '-infinity') and r.at < coalesce($3::timestamptz, 'infinity')
  and (r.at, r.queue, r.kind) > (coalesce($4::timestamptz, '-infinity'), coalesce($5::text, ''), coalesce($6::text, ''))
order by r.at, r.queue, r.kind limit $7
