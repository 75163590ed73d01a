-- Options come as one value, by name; what completes leases of shared groups has defaults for what only acks of both kinds give.
drop function if exists lockstep.configure(
    text, text, text, int, int, bigint, double precision, bigint, text, bigint, int, int, int, int, boolean, int, int, int, boolean, text,
    boolean, boolean, int, text, text, int, text, timestamptz);
drop function if exists lockstep.shared_complete(uuid[], timestamptz, int[], bigint[], bigint[], bigint[]);
