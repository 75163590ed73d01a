-- The queues whose messages cannot be read without a key, now or in the future. Examines the segments of unencrypted
-- queues one by one.
select q.name from lockstep.queue q
where q.encryption or exists (select 1 from lockstep.segment s where s.queue_id = q.id and s.codec & 2 <> 0)
order by q.name
