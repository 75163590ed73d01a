"""The hot routes on the wire: push, pop, ack and renew.

Payloads stay raw bytes on their way through: `msgspec.Raw` takes them out of a body, and puts them into an answer,
without decoding them. Field names are those of the protocol.
"""

from __future__ import annotations

from lockstep.core.wire.messages.acks import (
    AckBatchBody,
    AckItem,
    AckResult,
    ExtendAnswer,
    ExtendBody,
    LeaseAckAnswer,
    LeaseAckBody,
    ack_error,
    ack_of,
    ack_result,
    ack_status,
    extend_answer,
    lease_ack_answer,
    lease_of,
    partition_number,
    resolvable,
)
from lockstep.core.wire.messages.payloads import raw_data
from lockstep.core.wire.messages.pops import PopAnswer, PoppedMessage, pop_answer
from lockstep.core.wire.messages.pushes import Order, PushBody, PushItem, PushReceipt, batches_of, receipts

__all__ = [
    "AckBatchBody",
    "AckItem",
    "AckResult",
    "ExtendAnswer",
    "ExtendBody",
    "LeaseAckAnswer",
    "LeaseAckBody",
    "Order",
    "PopAnswer",
    "PoppedMessage",
    "PushBody",
    "PushItem",
    "PushReceipt",
    "ack_error",
    "ack_of",
    "ack_result",
    "ack_status",
    "batches_of",
    "extend_answer",
    "lease_ack_answer",
    "lease_of",
    "partition_number",
    "pop_answer",
    "raw_data",
    "receipts",
    "resolvable",
]
