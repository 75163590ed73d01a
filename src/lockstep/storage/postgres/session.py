"""What every session of ours sets, whichever driver opens it and whatever the database or the role has as a default."""

from __future__ import annotations

# To lock and then look takes a fresh snapshot for the look.
ISOLATION = {"default_transaction_isolation": "read committed"}

# Our statements have one right plan, through indexes, whatever the values are and however little the statistics know
# of a new table. Planning a pop takes three times as long as running it. See docs/decisions/0006.
PLANNER = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
