-- The queues that have messages which cannot be read without a key, or are going to have some. Looks at the segments of the
-- others one by one.
select q.name from lockstep.queue q
where q.encryption or exists (select 1 from lockstep.segment s where s.queue_id = q.id and s.codec & 2 <> 0)
order by q.name
