"""The HTTP protocol without I/O: builds requests, and reads answers into records and errors.

The hot verbs have routes of their own. Every other verb of the engine is `POST /api/v1/engine/<verb>` with its
arguments; the table in core/wire/verbs.py has them.
"""

from __future__ import annotations

from lockstep.client._protocol.acks import (
    ack_any,
    ack_batch,
    ack_by_lease,
    check_kinds,
    fit_batch,
    lease_outcome_of,
    outcomes_of,
    renew,
    renewed_of,
)
from lockstep.client._protocol.exchange import ConnectionFailed, HttpAnswer, HttpRequest
from lockstep.client._protocol.failures import connection_failure, failure_of
from lockstep.client._protocol.pops import delivered_of, next, pop
from lockstep.client._protocol.pushes import OutgoingPush, operation_of, outgoing_push, push_items
from lockstep.client._protocol.transactions import committed_of, transaction
from lockstep.client._protocol.verbs import call, health, result_of

__all__ = [
    "ConnectionFailed",
    "HttpAnswer",
    "HttpRequest",
    "OutgoingPush",
    "ack_any",
    "ack_batch",
    "ack_by_lease",
    "call",
    "check_kinds",
    "committed_of",
    "connection_failure",
    "delivered_of",
    "failure_of",
    "fit_batch",
    "health",
    "lease_outcome_of",
    "next",
    "operation_of",
    "outcomes_of",
    "outgoing_push",
    "pop",
    "push_items",
    "renew",
    "renewed_of",
    "result_of",
    "transaction",
]
