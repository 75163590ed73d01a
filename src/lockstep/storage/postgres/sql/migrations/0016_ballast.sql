-- Ballast of lockstep.delivery: leases of no group on no partition, which nobody ever finds.
--
-- What is in flight comes and goes, so that autovacuum mostly finds the table empty. Then every plan costs the planner the
-- same, it takes any index, and reads all of it as soon as much is in flight: an ack of ten messages took 200,000 blocks
-- where 20,000 leases were. With these rows in the statistics a lookup by partition or lease is always the cheapest way, and
-- the one group that they share makes it clear that a group may have many. See docs/decisions/0024-ballast.md.
insert into lockstep.delivery (partition_id, group_id, from_seq, to_seq, lease_id, leased_at, due_at, attempts)
select -n, 0, 1, 1, gen_random_uuid(), '-infinity', '-infinity', 0 from generate_series(1, 2000) n;
