"""The hot routes on the wire: push, pop, ack and renew.

Payloads stay raw bytes: `msgspec.Raw` takes them from a body and puts them into an answer without decoding them. Field
names are those of the protocol.
"""

from __future__ import annotations

from lockstep.core.wire.delivery.acks import (
    AckBatchBody,
    Acknowledgment,
    AckResult,
    LeaseAckAnswer,
    LeaseAckBody,
    RenewAnswer,
    RenewBody,
    ack_error,
    ack_of,
    ack_result,
    ack_status,
    lease_ack_answer,
    lease_of,
    partition_number,
    renew_answer,
    resolvable,
)
from lockstep.core.wire.delivery.packed import (
    PACKED,
    PACKED_MAGIC,
    PackedPush,
    PackedReceipts,
    is_packed,
    packed_receipts,
    read_popped,
    read_receipts,
    write_popped,
    write_push,
)
from lockstep.core.wire.delivery.payloads import raw_data, value_at
from lockstep.core.wire.delivery.pops import NextBody, PopAnswer, PoppedMessage, message_of, pop_answer
from lockstep.core.wire.delivery.pushes import PushBody, PushItem, PushReceipt, batches_of, receipts

__all__ = [
    "PACKED",
    "PACKED_MAGIC",
    "AckBatchBody",
    "AckResult",
    "Acknowledgment",
    "LeaseAckAnswer",
    "LeaseAckBody",
    "NextBody",
    "PackedPush",
    "PackedReceipts",
    "PopAnswer",
    "PoppedMessage",
    "PushBody",
    "PushItem",
    "PushReceipt",
    "RenewAnswer",
    "RenewBody",
    "ack_error",
    "ack_of",
    "ack_result",
    "ack_status",
    "batches_of",
    "is_packed",
    "lease_ack_answer",
    "lease_of",
    "message_of",
    "packed_receipts",
    "partition_number",
    "pop_answer",
    "raw_data",
    "read_popped",
    "read_receipts",
    "receipts",
    "renew_answer",
    "resolvable",
    "value_at",
    "write_popped",
    "write_push",
]
