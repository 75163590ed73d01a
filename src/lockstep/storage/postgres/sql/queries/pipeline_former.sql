-- Steps that a pipeline ($1) no longer has ($2: its current steps), and that read and wrote the same queues ($3, $4).
select s.step from lockstep.pipeline_step s
where s.pipeline = $1 and s.step <> all ($2::text[]) and s.sources <@ $3::text[] and s.sources @> $3::text[]
  and s.sinks <@ $4::text[] and s.sinks @> $4::text[] and s.group_name is null
order by s.seen_at desc
