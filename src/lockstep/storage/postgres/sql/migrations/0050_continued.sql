-- A row of lockstep.next: what became of a partition of a lease, then the columns of lockstep.popped. A column that is added to
-- lockstep.popped is added here as well, in the same migration, so that both have it as the last one.
create type lockstep.continued as (
    queue_name text, messages bigint, expired boolean, more boolean,
    request int, queue_id int, partition_id bigint, partition_name text, attempt int,
    first_seq bigint, last_seq bigint, segment_id bigint, ordinal int, expires_at timestamptz, lease_id uuid
);

drop function if exists lockstep.next(
    uuid[], int[], boolean[], bigint, int[], int[], bigint[], int[], int[], bigint[], uuid[], boolean[], timestamptz
);
drop function if exists lockstep.popped_runs(int, int, bigint, int, bigint, bigint, timestamptz, uuid);
