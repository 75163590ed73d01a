"""Push: converts the items of a body to batches, and their results to receipts."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from lockstep.core.ids import message_ids
from lockstep.core.messages import Appointment, Batch, Columns, NewSchedule, PushResult
from lockstep.core.names import DEFAULT_PARTITION
from lockstep.core.operations import Order
from lockstep.core.policy import SECONDS_MAX
from lockstep.core.wire.delivery.payloads import Content, value_at
from lockstep.core.wire.times import Time, parse_time_or_none, timestamp
from lockstep.errors import InvalidRequest

_NULL = Raw(b"null")


class PushItem(Content, rename="camel", gc=False, kw_only=True, forbid_unknown_fields=True):
    """One message to push. `producerSub` is ignored, because the client's word is not trusted."""

    queue: str
    payload: Raw = msgspec.field(default_factory=lambda: _NULL)
    partition: str = DEFAULT_PARTITION
    transaction_id: str | None = None
    trace_id: str | None = None
    expires_at: Time | None = None
    """The message is not delivered from this time on or, alternatively, after the given number of seconds. The default
    is the queue's option."""
    expire_seconds: Annotated[float, Meta(ge=0, le=SECONDS_MAX)] | None = None
    deliver_at: Time | None = None
    """The message is not delivered before this time or, alternatively, before the given number of seconds have passed.
    """
    delay_seconds: float | None = None
    schedule_key: str | None = None
    """Identifies the message while it is scheduled, to find, cancel or reschedule it; unique in its queue."""


class PushBody(Struct, forbid_unknown_fields=True):
    items: list[PushItem]


class PushReceipt(Struct, gc=False, omit_defaults=True):
    """The result for one item. The names mix two spellings, as the protocol does."""

    index: int
    transaction_id: str
    status: Literal["queued", "duplicate", "scheduled", "buffered"]
    message_id: str
    """Empty while the message is scheduled or buffered; a transaction id that was not given is empty, too."""
    partition_id: str
    trace_id: str | None
    queueName: str  # noqa: N815
    partition: str
    seq: int
    depth: int | UnsetType = UNSET
    """For a queue with a max_size: its pending messages after this push, and how many more fit."""
    remaining: int | UnsetType = UNSET
    scheduleId: str | UnsetType = UNSET  # noqa: N815
    """For a scheduled message: the id for cancelling it, and when it is due."""
    dueAt: str | UnsetType = UNSET  # noqa: N815


def batches_of(items: Sequence[PushItem], *, producer_sub: str | None = None) -> tuple[list[Batch], Order | None]:
    """The items as batches, one for each queue and partition; and their order, if it changes."""
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
    """Whether an item has only a payload: the common case, for which this is the only check."""
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
    """The results of the items, in their order."""
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
    count, first_seq = len(columns), placement.first_seq
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
    return [_unplaced_receipt(position, batch, "buffered") for position in range(len(batch.columns))]


def _waiting_receipts(batch: Batch, appointments: Sequence[Appointment]) -> list[PushReceipt]:
    return [
        _unplaced_receipt(
            position,
            batch,
            "duplicate" if appointment.duplicate else "scheduled",
            scheduleId=str(appointment.schedule_id),
            dueAt=timestamp(appointment.due_at),
        )
        for position, appointment in enumerate(appointments)
    ]


def _unplaced_receipt(
    position: int, batch: Batch, status: Literal["duplicate", "scheduled", "buffered"], **others: Any
) -> PushReceipt:
    """The receipt of a message that is not in its partition yet."""
    return PushReceipt(
        position,
        value_at(batch.columns.transaction_ids, position) or "",
        status,
        "",
        "0",
        value_at(batch.columns.trace_ids, position),
        batch.queue,
        batch.partition,
        0,
        **others,
    )
