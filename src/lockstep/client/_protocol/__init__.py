"""The HTTP protocol without I/O: builds requests, and reads answers into records and errors.

The hot verbs have routes of their own; every other verb of the engine is `POST /api/v1/engine/<verb>` with its
arguments, and `VERBS` says what it answers.
"""

from __future__ import annotations

from lockstep.client._protocol.acks import (
    ack_any,
    ack_batch,
    ack_by_lease,
    check_kinds,
    extend,
    fit_batch,
    lease_outcome_of,
    outcomes_of,
    renewed_of,
)
from lockstep.client._protocol.exchange import Answer, ConnectionFailed, Request
from lockstep.client._protocol.failures import connection_failure, failure_of
from lockstep.client._protocol.pops import delivered_of, pop
from lockstep.client._protocol.pushes import (
    applied_receipts,
    operation_of,
    push,
    push_items,
    queued_receipts,
    receipts_of,
)
from lockstep.client._protocol.transactions import committed_of, transaction
from lockstep.client._protocol.verbs import VERBS, call, health, result_of

__all__ = [
    "VERBS",
    "Answer",
    "ConnectionFailed",
    "Request",
    "ack_any",
    "ack_batch",
    "ack_by_lease",
    "applied_receipts",
    "call",
    "check_kinds",
    "committed_of",
    "connection_failure",
    "delivered_of",
    "extend",
    "failure_of",
    "fit_batch",
    "health",
    "lease_outcome_of",
    "operation_of",
    "outcomes_of",
    "pop",
    "push",
    "push_items",
    "queued_receipts",
    "receipts_of",
    "renewed_of",
    "result_of",
    "transaction",
]
