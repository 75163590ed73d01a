-- Which messages of a push have a transaction id or a trace: each kind by value, run, and offset in the run. UUIDs have a table
-- of their own, which is smaller.
create type lockstep.message_index as (
    uuids uuid[], uuid_runs int[], uuid_offsets int[],
    texts text[], text_runs int[], text_offsets int[],
    traces uuid[], trace_runs int[], trace_offsets int[]
);

-- The columns of a segment without a body, each with a value for every message, or null.
create type lockstep.plain_columns as (
    payloads bytea[], transaction_ids text[], trace_ids uuid[], kinds text[], refs text[], encodings text[],
    headers bytea[], producer_subs text[]
);

drop function if exists lockstep.push_segments(
    int[], int[], smallint[], bytea[], int[], bigint[], int[], int[], uuid[], int[], int[], text[], int[], int[], uuid[], int[], int[], bytea[], text[], uuid[], text[], text[], text[], bytea[], text[], boolean, timestamptz, timestamptz[], int, boolean
);
drop function if exists lockstep.restore_segment(
    int, uuid, timestamptz, smallint, bytea, bigint[], int[], uuid[], int[], int[], text[], int[], int[], uuid[], int[], int[], bytea[], text[], uuid[], text[], text[], text[], bytea[], text[], boolean
);
