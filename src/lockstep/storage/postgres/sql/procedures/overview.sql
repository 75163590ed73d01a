-- Sums over a queue. Lag and stored messages come from seqs; no message is counted: the cost follows the number of
-- partitions and cursors.
create or replace function lockstep.queue_sums(_queue_id int, _at timestamptz)
returns table (partitions bigint, stored bigint, pending bigint, processing bigint) language sql stable as $$
    select p.partitions, p.stored, coalesce(g.pending, p.stored), g.processing
    from (
        select count(*) as partitions, coalesce(sum(lockstep.lag(p.id, lockstep.start_of(p.id))), 0)::bigint as stored
        from lockstep.partition p where p.queue_id = _queue_id
    ) p
    cross join (
        select max(t.lag)::bigint as pending, coalesce(sum(t.processing), 0)::bigint as processing from (
            select coalesce(sum(lockstep.behind(c)), 0) as lag, sum(lockstep.held(c, coalesce(_at, clock_timestamp()))) as processing
            from lockstep.consumer_group g
            left join lockstep.partition p on p.queue_id = g.queue_id
            left join lateral lockstep.cursor_at(g, p.id) c on true
            where g.queue_id = _queue_id group by g.id
        ) t
    ) g
$$;
