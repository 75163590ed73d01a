-- What a pop gives: consecutive messages of one partition, and where they are. Without a partition it says that more is due.
create type lockstep.popped as (
    request int, queue_id int, partition_id bigint, partition_name text, attempt int,
    first_seq bigint, last_seq bigint, segment_id bigint, ordinal int, expires_at timestamptz, lease_id uuid
);

-- A cursor from which messages up to a seq can be claimed, and what the search for the next one goes on with (pop.sql).
create type lockstep.next_claim as (at lockstep.cursor, upto bigint, passed bigint[], looks int, more boolean);

drop function if exists lockstep.pop(int[], int[], bigint[], int[], int[], bigint[], uuid[], boolean[], timestamptz);
drop function if exists lockstep.claim_regular(int[], int, int, int, int[], int[], bigint[], uuid[], timestamptz);
drop function if exists lockstep.shared_pop(int[], int[], bigint[], int[], int[], bigint[], uuid[], boolean[], timestamptz, boolean);
drop function if exists lockstep.shared_claim_joined(int, int[], int[], bigint[], uuid[], timestamptz);
