-- Steps of pipelines, and how many messages each still has to read. The cost grows with that number.
select s.pipeline, s.step, s.sources, s.sinks,
       case when s.error is not null then 'failed'
            when s.stopped_at is not null then 'stopped'
            when s.failed_at is not null and s.seen_at > clock_timestamp() - make_interval(secs => $2) then 'restarting'
            when s.seen_at > clock_timestamp() - make_interval(secs => $2) then 'running'
            else 'gone' end as state,
       s.started_at, s.seen_at, s.batch_id as batch, s.committed_at, s.batch_pushed, s.batch_rejected, s.pushed, s.rejected,
       s.rows_per_second, s.error,
       (select count(*) from lockstep.dead_letter d
        where d.queue_id in (select q.id from lockstep.queue q where q.name = any (s.sources)) and d.group_name = coalesce(s.group_name, s.pipeline || '.' || s.step)) as dead_letters,
       coalesce(l.messages, 0) as lag, l.oldest_at, l.position, s.checkpoint, s.restarts, s.restart_error, s.duplicates
from lockstep.pipeline_step s
cross join lateral (
    select sum(b.messages)::bigint as messages, min(b.oldest_at) as oldest_at, max(b.position) as position
    from (
        select g.messages, g.oldest_at, p.read_upto::text || case when p.read_base::text <> p.read_upto::text then '/' || p.read_segment else '' end as position
        from lockstep.spark_position p
        cross join lateral (
            select sum(t.message_count)::bigint as messages, min(t.created_at) as oldest_at
            from lockstep.segment t
            where t.queue_id = p.queue_id and t.txid >= pg_snapshot_xmin(p.read_base)
              and not lockstep.is_read(p.read_base, p.read_upto, p.read_segment, t.txid, t.id)
        ) g
        where s.group_name is null and p.name = s.pipeline || '.' || s.step
          and p.queue_id in (select q.id from lockstep.queue q where q.name = any (s.sources))
          -- The last stream created on the queue; others belong to abandoned checkpoints.
          and not exists (
              select 1 from lockstep.spark_position n
              where n.name = p.name and n.queue_id = p.queue_id and n.stream_id <> p.stream_id and n.created_at > p.created_at
          )
        union all
        select sum(lockstep.behind(c))::bigint, null, 'group ' || s.group_name
        from lockstep.queue q
        join lockstep.consumer_group g on g.queue_id = q.id and g.name = s.group_name
        join lockstep.partition p on p.queue_id = q.id
        cross join lateral lockstep.cursor_at(g, p.id) c
        where s.group_name is not null and q.name = any (s.sources)
    ) b
) l
where $1::text is null or s.pipeline = $1
order by s.pipeline, s.started_at, s.step
