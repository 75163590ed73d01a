"""Stored messages on the wire: lists, a single message in full, and what an operator does with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Raw, Struct

from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import DeadLetter, GroupProgress, MessageStatus, MessageView, QueueInfo
from lockstep.core.wire.delivery import raw_data
from lockstep.core.wire.times import timestamp, timestamp_or_none

QueueStatus = Literal["pending", "processing", "completed"]


class BusStatus(Struct, rename="camel"):
    """Number of groups that have done the message, besides queue mode."""

    consumed_by: int
    total_groups: int


class Mode(Struct, rename="camel"):
    """How a queue is read: in queue mode, by groups, or both."""

    has_queue_mode: bool
    bus_groups_count: int
    type: Literal["queue", "bus", "hybrid", "none"]


class MessageRow(Struct, rename="camel", kw_only=True):
    id: str
    transaction_id: str
    partition_id: str
    queue_path: str
    queue: str
    partition: str
    namespace: str
    task: str
    status: MessageStatus
    """Over all groups."""
    queue_status: QueueStatus | None
    """In queue mode; null if nobody has read the queue so yet."""
    bus_status: BusStatus
    trace_id: str | None
    producer_sub: str | None
    queue_priority: int
    created_at: str
    lease_expires_at: str | None
    seq: int


class MessagesAnswer(Struct):
    messages: list[MessageRow]
    mode: Mode
    cursor: str | None
    """Pass it to get the next page; null at the end."""


class QueueConfig(Struct, rename="camel"):
    lease_time: int
    retry_limit: int
    retry_delay: int
    ttl: int
    priority: int


class MessageGroup(Struct, rename="camel"):
    name: str
    consumed: bool
    lease_expires_at: str | None


class OneMessageAnswer(MessageRow, rename="camel", kw_only=True):
    payload: Raw
    encoding: str | None
    """If not null, the payload is a base64 string."""
    kind: str | None
    reference: str | None
    headers: dict[str, str]
    is_encrypted: bool
    error_message: str | None
    retry_count: int
    """For a dead letter: number of failed deliveries."""
    queue_config: QueueConfig
    mode: Mode
    consumer_groups: list[MessageGroup]


class MessageAnswer(Struct, rename="camel"):
    success: bool
    partition_id: str
    transaction_id: str
    message: str


class RetryMessageAnswer(MessageAnswer, rename="camel", kw_only=True):
    message_id: str
    """The message that was pushed again."""
    seq: int


class BuryMessageBody(Struct, rename="camel"):
    consumer_group: str | None = None
    error: str | None = None


class BuryMessageAnswer(MessageAnswer, rename="camel", kw_only=True):
    dead_letter_id: str


def mode(groups: Iterable[str]) -> Mode:
    """The mode for these groups."""
    names = set(groups)
    buses = len(names - {QUEUE_MODE})
    if QUEUE_MODE in names:
        return Mode(True, buses, "hybrid" if buses else "queue")
    return Mode(False, buses, "bus" if buses else "none")


def message_rows(views: Sequence[MessageView], queues: Mapping[str, QueueInfo]) -> list[MessageRow]:
    return [MessageRow(**_fields(view, queues[view.message.queue])) for view in views]


def _fields(view: MessageView, queue: QueueInfo) -> dict[str, Any]:
    message = view.message
    plain = [group for group in view.groups if group.group == QUEUE_MODE]
    buses = [group for group in view.groups if group.group != QUEUE_MODE]
    leases = [group.lease_expires_at for group in view.groups if group.lease_expires_at is not None]
    return {
        "id": message.id,
        "transaction_id": message.transaction_id,
        "partition_id": str(message.partition_id),
        "queue_path": f"{message.queue}/{message.partition}",
        "queue": message.queue,
        "partition": message.partition,
        "namespace": queue.namespace,
        "task": queue.task,
        "status": view.status,
        "queue_status": _queue_status(plain[0]) if plain else None,
        "bus_status": BusStatus(sum([group.consumed for group in buses]), len(buses)),
        "trace_id": message.trace_id,
        "producer_sub": message.producer_sub,
        "queue_priority": queue.options.priority,
        "created_at": timestamp(message.created_at),
        "lease_expires_at": timestamp_or_none(max(leases, default=None)),
        "seq": message.seq,
    }


def _queue_status(group: GroupProgress) -> QueueStatus:
    if group.consumed:
        return "completed"
    return "pending" if group.lease_expires_at is None else "processing"


def one_message_answer(view: MessageView, queue: QueueInfo, letter: DeadLetter | None) -> OneMessageAnswer:
    message, options = view.message, queue.options
    return OneMessageAnswer(
        **_fields(view, queue),
        payload=raw_data(message.payload, message.encoding),
        encoding=message.encoding,
        kind=message.kind,
        reference=message.reference,
        headers=dict(message.headers or {}),
        is_encrypted=options.encryption,
        error_message=letter.error if letter else None,
        retry_count=letter.attempts if letter else 0,
        queue_config=QueueConfig(
            lease_time=options.lease_seconds,
            retry_limit=options.retry_limit,
            retry_delay=options.retry_delay_ms,
            ttl=options.ttl_seconds,
            priority=options.priority,
        ),
        mode=mode([group.group for group in view.groups]),
        consumer_groups=[
            MessageGroup(group.group, group.consumed, timestamp_or_none(group.lease_expires_at))
            for group in view.groups
        ],
    )
