"""The hot routes on the wire: push, pop, ack and renew.

Payloads stay raw bytes on their way through: `msgspec.Raw` takes them out of a body, and puts them into an answer,
without decoding them. Field names are those of the protocol.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import replace

from lockstep.core.ids import is_canonical_uuid, message_ids
from lockstep.core.messages import Appointment, Batch, Columns, NewSchedule, PushResult, Run
from lockstep.core.names import DEFAULT_PARTITION, QUEUE_MODE, TRANSACTION_ID_LENGTH_MAX, storable
from lockstep.core.policy import SECONDS_MAX, GroupMode
from lockstep.core.records import (
    ACK_ERROR_TEXTS,
    Ack,
    AckOutcome,
    AckStatus,
    Popped,
    Renewed,
)
from lockstep.core.wire.numbers import is_number, number_of
from lockstep.core.wire.times import Time, parse_time_or_none, timestamp, timestamp_or_none
from lockstep.errors import InvalidRequest

Order = list[tuple[int, int]]
_NULL = Raw(b"null")
_NO_LEASE = "00000000-0000-0000-0000-000000000000"
_NO_PARTITION = 2**63 - 1
"""The largest id that there can be, which none ever gets."""


class PushItem(Struct, rename="camel", gc=False):
    """One message to push. What is not named here is ignored, a `producerSub` above all: it is never trusted."""

    queue: str
    payload: Raw = msgspec.field(default_factory=lambda: _NULL)
    partition: str = DEFAULT_PARTITION
    transaction_id: str | None = None
    trace_id: str | None = None
    kind: str | None = None
    reference: str | None = None
    encoding: str | None = None
    headers: dict[str, str] | None = None
    payload_base64: str | None = None
    """The payload as opaque bytes, in place of `payload`; `encoding` says what they are."""
    expires_at: Time | None = None
    """Not delivered from this time on; or, in place of it, so many seconds from now. Without, as the queue says."""
    expire_seconds: Annotated[float, Meta(ge=0, le=SECONDS_MAX)] | None = None
    deliver_at: Time | None = None
    """Not before this time; or, in place of it, so many seconds from now."""
    delay_seconds: float | None = None
    schedule_key: str | None = None
    """By which it can be found, cancelled and rescheduled while it waits; unique in its queue."""


class PushBody(Struct):
    items: list[PushItem]


class PushReceipt(Struct, gc=False, omit_defaults=True):
    """What became of one item. The names are a mix of two spellings, because the protocol's are."""

    index: int
    transaction_id: str
    status: Literal["queued", "duplicate", "scheduled", "buffered"]
    message_id: str
    """Empty while the message waits for its time, or for the database; so is a transaction id that was not given."""
    partition_id: str
    trace_id: str | None
    queueName: str  # noqa: N815
    partition: str
    seq: int
    depth: int | UnsetType = UNSET
    """Of a queue with a max_size: its pending messages after this push, and how many more it takes."""
    remaining: int | UnsetType = UNSET
    scheduleId: str | UnsetType = UNSET  # noqa: N815
    """Of a message that waits: by what it can be cancelled, and when it is due."""
    dueAt: str | UnsetType = UNSET  # noqa: N815


class PoppedMessage(Struct, rename="camel", gc=False, omit_defaults=True):
    id: str
    transaction_id: str
    trace_id: str | None
    data: Raw
    """The payload; a base64 string where `encoding` says that it is not JSON."""
    producer_sub: str | None
    created_at: str
    partition_id: str
    partition: str
    lease_id: str
    consumer_group: str
    queue: str
    seq: int
    attempt: int
    kind: str | UnsetType = UNSET
    reference: str | UnsetType = UNSET
    encoding: str | UnsetType = UNSET
    headers: Raw | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET


class PopAnswer(Struct, rename="camel"):
    success: bool
    queue: str
    partition: str
    """The first claimed partition; each message names its own."""
    partition_id: str
    lease_id: str
    consumer_group: str
    partitions_claimed: int
    expires_at: str | None
    messages: list[PoppedMessage]
    mode: GroupMode = "ordered"
    """In a shared group each message is acknowledged by itself."""


class AckItem(Struct, rename="camel", gc=False):
    transaction_id: str | None = None
    partition_id: str | int | None = None
    status: str = "completed"
    consumer_group: str | None = None
    lease_id: str | None = None
    error: str | None = None
    seq: int | None = None
    """In place of the transaction id, with `leaseId` and `partitionId`."""
    retry_at: Time | None = None
    """With the status failed or retry: when it is delivered again, instead of after the queue's delay, or now."""


class AckBatchBody(Struct, rename="camel"):
    acknowledgments: list[AckItem]
    consumer_group: str | None = None
    atomic: bool = False
    """All of them or none: if one has no success, nothing is applied, and the answer is a 409."""


class LeaseAckBody(Struct, rename="camel"):
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
    """How many messages this completed."""
    lease_released: bool
    dlq: bool
    noop: bool


class ExtendBody(Struct):
    seconds: float | None = None


class ExtendAnswer(Struct, rename="camel"):
    lease_id: str
    success: bool
    renewed: int
    new_expires_at: str | None
    expires_at: str | None


# --- Push ---------------------------------------------------------------------------------------------------


def batches_of(items: Sequence[PushItem], *, producer_sub: str | None = None) -> tuple[list[Batch], Order | None]:
    """The items as batches, one for each queue and partition; and, where that changes it, their order."""
    if any([_is_scheduled(item) for item in items]):
        return _scheduled_batches_of(items, producer_sub)
    if len(items) == 1 or len({(item.queue, item.partition) for item in items}) <= 1:
        return [_batch(items, producer_sub)] if items else [], None
    gathered: dict[tuple[str, str], list[PushItem]] = {}
    indexes: dict[tuple[str, str], int] = {}
    order = []
    for item in items:
        key = (item.queue, item.partition)
        members = gathered.setdefault(key, [])
        order.append((indexes.setdefault(key, len(indexes)), len(members)))
        members.append(item)
    return [_batch(members, producer_sub) for members in gathered.values()], order


def _is_scheduled(item: PushItem) -> bool:
    return item.deliver_at is not None or item.delay_seconds is not None or item.schedule_key is not None


def _scheduled_batches_of(items: Sequence[PushItem], producer_sub: str | None) -> tuple[list[Batch], Order]:
    """The items as batches, one for each queue, partition and time; and their order."""
    gathered: dict[tuple[str, str, NewSchedule | None], list[PushItem]] = {}
    order: list[tuple[tuple[str, str, NewSchedule | None], int]] = []
    for item in items:
        key = (item.queue, item.partition, _schedule(item) if _is_scheduled(item) else None)
        members = gathered.setdefault(key, [])
        order.append((key, len(members)))
        members.append(item)
    batches = [_batch(members, producer_sub) for members in gathered.values()]
    for batch, (_, _, schedule) in zip(batches, gathered, strict=True):
        batch.schedule = schedule
    indexes = {key: index for index, key in enumerate(gathered)}
    return batches, [(indexes[key], position) for key, position in order]


def _schedule(item: PushItem) -> NewSchedule:
    deliver_at = parse_time_or_none(item.deliver_at, what="deliverAt")
    return NewSchedule(deliver_at=deliver_at, delay_seconds=item.delay_seconds, key=item.schedule_key)


def _batch(items: Sequence[PushItem], producer_sub: str | None) -> Batch:
    columns = Columns([bytes(item.payload) for item in items])
    if not all([_is_bare(item) for item in items]):
        _add_extras(columns, items)
    if producer_sub is not None:
        columns.producer_subs = [producer_sub] * len(items)
    return Batch(items[0].queue, items[0].partition, columns)


def _is_bare(item: PushItem) -> bool:
    """Whether there is nothing but a payload: the common case, in which only this one look is taken."""
    return (
        item.transaction_id is None
        and item.trace_id is None
        and item.kind is None
        and item.reference is None
        and item.encoding is None
        and item.headers is None
        and item.payload_base64 is None
        and item.expires_at is None
        and item.expire_seconds is None
    )


def _add_extras(columns: Columns, items: Sequence[PushItem]) -> None:
    for name in ("transaction_id", "trace_id", "kind", "reference", "encoding"):
        setattr(columns, f"{name}s", _used([getattr(item, name) for item in items]))
    columns.expires_at = _used([_expiry(item) for item in items])
    if any([item.headers is not None for item in items]):
        columns.headers = [None if item.headers is None else msgspec.json.encode(item.headers) for item in items]
    if columns.encodings is not None or any([item.payload_base64 is not None for item in items]):
        columns.payloads = [_opaque(index, item) for index, item in enumerate(items)]


def _expiry(item: PushItem) -> datetime | timedelta | None:
    if item.expire_seconds is None:
        return parse_time_or_none(item.expires_at, what="expiresAt")
    if item.expires_at is not None:
        raise InvalidRequest("an item has expiresAt or expireSeconds, and not both")
    return timedelta(seconds=item.expire_seconds)


def _used(column: list[Any]) -> list[Any] | None:
    return column if column.count(None) < len(column) else None


def _opaque(index: int, item: PushItem) -> bytes:
    if item.payload_base64 is None:
        if item.encoding is not None:
            raise InvalidRequest(f"item {index}: with an encoding the payload comes as payloadBase64")
        return bytes(item.payload)
    if item.encoding is None:
        raise InvalidRequest(f"item {index}: payloadBase64 needs an encoding that says what the bytes are")
    try:
        return b64decode(item.payload_base64, validate=True)
    except ValueError:
        raise InvalidRequest(f"item {index}: payloadBase64 is not base64") from None


def receipts(result: PushResult, order: Order | None) -> list[PushReceipt]:
    """What became of the items, in their order."""
    by_batch = [_batch_receipts(result, index) for index in range(len(result.batches))]
    if order is None:
        return by_batch[0] if by_batch else []
    ordered = [by_batch[batch][position] for batch, position in order]
    for index, receipt in enumerate(ordered):
        receipt.index = index
    return ordered


def _batch_receipts(result: PushResult, index: int) -> list[PushReceipt]:
    batch, placement = result.batches[index], result.placements[index]
    if placement.appointments is not None:
        return _waiting_receipts(batch, placement.appointments)
    if placement.buffered:
        return _buffered_receipts(batch)
    columns, queue, partition, partition_id = batch.columns, batch.queue, batch.partition, str(placement.partition_id)
    count, first_seq = len(columns.payloads), placement.first_seq
    if not result.occupancy and not placement.duplicates and columns.bare():
        return [
            PushReceipt(
                position, identity, "queued", identity, partition_id, None, queue, partition, first_seq + position
            )
            for position, identity in enumerate(message_ids(placement.segment, placement.ordinal, count))
        ]
    occupancy = result.occupancy.get(queue)
    depth = UNSET if occupancy is None else occupancy.depth
    remaining = UNSET if occupancy is None else occupancy.remaining
    duplicates = placement.duplicates or {}
    fresh = iter(enumerate(message_ids(placement.segment, placement.ordinal, count - len(duplicates)), first_seq))
    transaction_ids = columns.transaction_ids or [None] * count
    trace_ids = columns.trace_ids or [None] * count
    made = []
    for position in range(count):
        status: Literal["queued", "duplicate"] = "duplicate" if position in duplicates else "queued"
        seq, identity = duplicates[position] if position in duplicates else next(fresh)
        made.append(
            PushReceipt(
                position,
                transaction_ids[position] or identity,
                status,
                identity,
                partition_id,
                trace_ids[position],
                queue,
                partition,
                seq,
                depth,
                remaining,
            )
        )
    return made


def _buffered_receipts(batch: Batch) -> list[PushReceipt]:
    return [
        PushReceipt(
            position,
            _at(batch.columns.transaction_ids, position) or "",
            "buffered",
            "",
            "0",
            _at(batch.columns.trace_ids, position),
            batch.queue,
            batch.partition,
            0,
        )
        for position in range(len(batch.columns))
    ]


def _waiting_receipts(batch: Batch, appointments: Sequence[Appointment]) -> list[PushReceipt]:
    return [
        PushReceipt(
            position,
            _at(batch.columns.transaction_ids, position) or "",
            "duplicate" if appointment.duplicate else "scheduled",
            "",
            "0",
            _at(batch.columns.trace_ids, position),
            batch.queue,
            batch.partition,
            0,
            scheduleId=str(appointment.schedule_id),
            dueAt=timestamp(appointment.due_at),
        )
        for position, appointment in enumerate(appointments)
    ]


# --- Pop ----------------------------------------------------------------------------------------------------


def pop_answer(popped: Popped) -> PopAnswer:
    """The answer of a pop that found something."""
    first = popped.runs[0]
    lease_id = popped.lease_id or ""
    messages: list[PoppedMessage] = []
    for run in popped.runs:
        messages += _messages(run, lease_id, popped.group)
    return PopAnswer(
        success=True,
        queue=first.queue,
        partition=first.partition,
        partition_id=str(first.partition_id),
        lease_id=lease_id,
        consumer_group=popped.group,
        partitions_claimed=len({run.partition_id for run in popped.runs}),
        expires_at=timestamp_or_none(popped.expires_at),
        messages=messages,
        mode=popped.mode,
    )


def _messages(run: Run, lease_id: str, group: str) -> list[PoppedMessage]:
    columns = run.columns
    ids = message_ids(run.segment, run.ordinal, len(columns.payloads))
    transaction_ids: Sequence[str | None] = columns.transaction_ids or ids
    created_at, partition_id, partition = timestamp(run.created_at), str(run.partition_id), run.partition
    queue, attempt = run.queue, run.attempt
    if all([column is None for column in columns.all()[2:]]):  # nothing but payloads and transaction ids
        return [
            PoppedMessage(
                identity, transaction_id or identity, None, Raw(payload), None, created_at, partition_id, partition,
                lease_id, group, queue, seq, attempt,
            )
            for seq, (identity, transaction_id, payload) in enumerate(
                zip(ids, transaction_ids, columns.payloads, strict=True), run.first_seq
            )
        ]  # fmt: skip
    return [
        PoppedMessage(
            id=identity,
            transaction_id=transaction_ids[offset] or identity,
            trace_id=_at(columns.trace_ids, offset),
            data=_data(columns, offset),
            producer_sub=_at(columns.producer_subs, offset),
            created_at=created_at,
            partition_id=partition_id,
            partition=partition,
            lease_id=lease_id,
            consumer_group=group,
            queue=queue,
            seq=run.first_seq + offset,
            attempt=attempt,
            kind=_given(columns.kinds, offset),
            reference=_given(columns.references, offset),
            encoding=_given(columns.encodings, offset),
            headers=UNSET if _at(columns.headers, offset) is None else Raw(_at(columns.headers, offset)),
            expires_at=timestamp_or_none(_at(columns.expires_at, offset)) or UNSET,
        )
        for offset, identity in enumerate(ids)
    ]


def _at(column: list[Any] | None, offset: int) -> Any:
    return None if column is None else column[offset]


def _given(column: list[str | None] | None, offset: int) -> str | UnsetType:
    value: str | None = _at(column, offset)
    return UNSET if value is None else value


def _data(columns: Columns, offset: int) -> Raw:
    payload = columns.payloads[offset]
    return raw_data(payload, _at(columns.encodings, offset))


def raw_data(payload: bytes, encoding: str | None) -> Raw:
    """A payload as it stands in an answer: JSON as it is, anything else as a base64 string."""
    return Raw(payload) if encoding is None else Raw(b'"' + b64encode(payload) + b'"')


# --- Ack ----------------------------------------------------------------------------------------------------

_STATUSES: dict[str, AckStatus] = {
    "completed": "completed",
    "success": "completed",
    "failed": "failed",
    "retry": "retry",
    "dlq": "dlq",
}


def ack_of(item: AckItem, *, group: str | None = None) -> Ack:
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


def resolvable(item: AckItem) -> AckItem:
    """An ack of several. If one of its ids can be nobody's, it names a message that does not exist: then it fails for
    itself, as one with any other wrong id does, and not for all."""
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
    """A lease id. What is no lease id at all is a lease that is gone, too; an empty one is as if not given."""
    return (text if is_canonical_uuid(text.lower()) else _NO_LEASE) if text else None


def ack_status(text: str) -> AckStatus:
    status = _STATUSES.get(text)
    if status is None:
        raise InvalidRequest(f"status must be one of {', '.join(_STATUSES)}, not {text[:64]!r}")
    return status


def partition_number(text: str | int) -> int:
    return number_of(text, what="partitionId")


def ack_result(item: AckItem, outcome: AckOutcome, index: int) -> AckResult:
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


def extend_answer(lease_id: str, renewed: Renewed) -> ExtendAnswer:
    expires_at = timestamp_or_none(renewed.expires_at)
    return ExtendAnswer(
        lease_id=lease_id,
        success=renewed.partitions > 0,
        renewed=renewed.partitions,
        new_expires_at=expires_at,
        expires_at=expires_at,
    )
