"""Ack and renew: by message, by a seq under a lease, or by lease; and their results."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from lockstep.core.endings import ACK_STATUSES, AckStatus
from lockstep.core.ids import is_canonical_uuid
from lockstep.core.names import QUEUE_MODE, TRANSACTION_ID_LENGTH_MAX, storable
from lockstep.core.records import ACK_ERROR_TEXTS, Ack, AckOutcome, Renewed
from lockstep.core.wire.numbers import is_number, number_of
from lockstep.core.wire.times import Time, parse_time_or_none, timestamp_or_none
from lockstep.errors import InvalidRequest

_NO_LEASE = "00000000-0000-0000-0000-000000000000"
_NO_PARTITION = 2**63 - 1
"""The largest possible id, which is never assigned."""

_STATUSES: dict[str, AckStatus] = {**{status: status for status in ACK_STATUSES}, "success": "completed"}


_Status = Annotated[str, Meta(description=f"{', '.join(['completed or success', *ACK_STATUSES[1:]])}.")]


class Acknowledgment(Struct, rename="camel", gc=False, forbid_unknown_fields=True):
    transaction_id: str | None = None
    """Required, unless `seq` is given."""
    partition_id: str | int | None = None
    """Required."""
    status: _Status = "completed"
    consumer_group: str | None = None
    lease_id: str | None = None
    error: str | None = None
    seq: int | None = None
    """Instead of the transaction id, with `leaseId` and `partitionId`."""
    retry_at: Time | None = None
    """With the status failed or retry: when the message is delivered again, instead of at once or after the queue's
    delay.
    """


class AckBatchBody(Struct, rename="camel", forbid_unknown_fields=True):
    acknowledgments: list[Acknowledgment]
    consumer_group: str | None = None
    atomic: bool = False
    """All or none: if one ack fails, nothing is applied and the answer is 409."""


class LeaseAckBody(Struct, rename="camel", forbid_unknown_fields=True):
    status: str = "completed"
    error: str | None = None
    partition_id: str | int | None = None
    seq: int | None = None
    retry_at: Time | None = None


class AckResult(Struct, rename="camel", gc=False, omit_defaults=True):
    index: int
    transaction_id: str | None
    success: bool
    error: str | None
    queue_name: str | None
    partition_name: str | None
    lease_released: bool
    dlq: bool
    noop: bool | UnsetType = UNSET


class LeaseAckAnswer(Struct, rename="camel"):
    lease_id: str
    success: bool
    error: str | None
    messages: int
    """Number of messages completed."""
    lease_released: bool
    dlq: bool
    noop: bool


class RenewBody(Struct, forbid_unknown_fields=True):
    seconds: float | None = None


class RenewAnswer(Struct, rename="camel"):
    lease_id: str
    success: bool
    renewed: int
    new_expires_at: str | None
    expires_at: str | None


def ack_of(item: Acknowledgment, *, group: str | None = None) -> Ack:
    """An ack by message, or by a seq under a lease."""
    if item.transaction_id is None and item.seq is None:
        raise InvalidRequest("transactionId is required")
    if item.partition_id is None:
        raise InvalidRequest("partitionId is required")
    if item.seq is not None and item.transaction_id is None and not item.lease_id:
        raise InvalidRequest("an ack by seq needs a leaseId")
    return Ack(
        lease_id=lease_of(item.lease_id),
        partition_id=partition_number(item.partition_id),
        transaction_id=item.transaction_id,
        seq=item.seq if item.transaction_id is None else None,
        group=item.consumer_group or group or QUEUE_MODE,
        status=ack_status(item.status),
        error=item.error,
        retry_at=parse_time_or_none(item.retry_at, what="retryAt"),
    )


def resolvable(item: Acknowledgment) -> Acknowledgment:
    """One of several acks. An impossible id is replaced by the id of a message that does not exist: only this ack fails
    then, as with any other wrong id, rather than the whole request."""
    if _may_be_partition(item.partition_id) and _may_be_message(item.transaction_id) and _may_be_seq(item.seq):
        return item
    transaction_id = None if item.transaction_id is None else "-"
    seq = None if item.seq is None else 1
    return replace(item, partition_id=_NO_PARTITION, transaction_id=transaction_id, seq=seq)


def _may_be_partition(partition_id: str | int | None) -> bool:
    if isinstance(partition_id, str):
        return is_number(partition_id)
    return partition_id is None or 0 < partition_id <= _NO_PARTITION


def _may_be_message(transaction_id: str | None) -> bool:
    return transaction_id is None or (0 < len(transaction_id) <= TRANSACTION_ID_LENGTH_MAX and storable(transaction_id))


def _may_be_seq(seq: int | None) -> bool:
    return seq is None or 0 < seq <= _NO_PARTITION


def lease_of(text: str | None) -> str | None:
    """A lease id. A malformed id counts as a lost lease; an empty one counts as missing."""
    return (text if is_canonical_uuid(text.lower()) else _NO_LEASE) if text else None


def ack_status(text: str) -> AckStatus:
    status = _STATUSES.get(text)
    if status is None:
        raise InvalidRequest(f"status must be one of {', '.join(_STATUSES)}, not {text[:64]!r}")
    return status


def partition_number(text: str | int) -> int:
    return number_of(text, what="partitionId")


def ack_result(item: Acknowledgment, outcome: AckOutcome, index: int) -> AckResult:
    return AckResult(
        index,
        item.transaction_id,
        outcome.success,
        ack_error(outcome),
        outcome.queue,
        outcome.partition,
        outcome.released,
        outcome.dead,
        True if outcome.noop else UNSET,
    )


def ack_error(outcome: AckOutcome) -> str | None:
    return None if outcome.error is None else ACK_ERROR_TEXTS[outcome.error]


def lease_ack_answer(lease_id: str, outcome: AckOutcome) -> LeaseAckAnswer:
    return LeaseAckAnswer(
        lease_id=lease_id,
        success=outcome.success,
        error=ack_error(outcome),
        messages=outcome.messages,
        lease_released=outcome.released,
        dlq=outcome.dead,
        noop=outcome.noop,
    )


def renew_answer(lease_id: str, renewed: Renewed) -> RenewAnswer:
    expires_at = timestamp_or_none(renewed.expires_at)
    return RenewAnswer(
        lease_id=lease_id,
        success=renewed.partitions > 0,
        renewed=renewed.partitions,
        new_expires_at=expires_at,
        expires_at=expires_at,
    )
