"""Operations on the wire: accepted requests and their results."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from lockstep.core.messages import QueuedPush, Receipt
from lockstep.core.operations import OperationInfo, OperationKind, OperationPage, OperationStats, OperationStatus
from lockstep.core.records import AckOutcome
from lockstep.core.wire.delivery import ack_error
from lockstep.core.wire.times import timestamp, timestamp_or_none


class QueuedAnswer(Struct, rename="camel"):
    """A push that was accepted and is applied later, in order."""

    status: Literal["deferred"]
    """Not `queued`, which means that a message is stored."""
    operation_id: str
    queue_position: int
    """Approximate position in the queue of operations."""
    estimated_wait: float
    """Seconds."""
    reason: Literal["system_busy", "maintaining_order"]


class OperationReceipt(Struct, omit_defaults=True):
    """The result for one item of a push, in the order of its items. The names are those of a push's own answer."""

    index: int
    status: Literal["queued", "duplicate", "scheduled"]
    message_id: str
    partition_id: str
    queueName: str  # noqa: N815
    partition: str
    seq: int
    scheduleId: str | UnsetType = UNSET  # noqa: N815
    dueAt: str | UnsetType = UNSET  # noqa: N815


class OperationAck(Struct, rename="camel"):
    """The result of one ack."""

    index: int
    success: bool
    error: str | None
    """Why it failed; it may have come too late for its lease."""
    noop: bool
    lease_released: bool
    dlq: bool
    messages: int
    queue_name: str | None
    partition_name: str | None


class OperationAnswer(Struct, rename="camel", kw_only=True):
    operation_id: str
    kind: OperationKind
    status: OperationStatus
    priority: int
    queues: list[str]
    """The queues of a push; acks have none."""
    partition: str | None
    """The partition of a push, if there is only one."""
    partitions: int
    messages: int
    """The number of messages, or of acks."""
    queue_position: int | None
    """While it waits, when requested by id."""
    created_at: str
    due_at: str | None
    """While it waits: not applied before this time."""
    completed_at: str | None
    retries: int
    worker: str | None
    error: str | None
    """Why it failed; while it waits, why the last attempt did not apply it."""
    code: str | None
    receipts: list[OperationReceipt] | None = None
    """For an applied push."""
    acks: list[OperationAck] | None = None
    """For applied acks."""


class OperationsAnswer(Struct, rename="camel"):
    operations: list[OperationAnswer]
    next_cursor: str | None


class DepthRow(Struct, rename="camel"):
    kind: OperationKind
    operations: int
    messages: int
    bytes: int
    oldest_at: str | None


class LoadRow(Struct, rename="camel"):
    kind: Literal["push", "ack", "pop"]
    answer: Literal["execute", "queue", "shed", "reject"]
    """What the process does with the next request of this kind."""
    load: float
    """At 1 the load has reached the limit that the settings define."""
    seconds: float
    """How long it has been in this state."""
    queued: int
    rejected: int


class OperationStatsAnswer(Struct, rename="camel", kw_only=True):
    """Waiting operations of all servers; the load of the answering process, and what it has applied."""

    worker_id: str
    pending: list[DepthRow]
    failed: int
    load_managed: bool
    load: list[LoadRow]
    applied: int
    applied_failed: int
    applied_per_second: float


def queued_answer(queued: QueuedPush) -> QueuedAnswer:
    return QueuedAnswer("deferred", queued.operation_id, queued.position, queued.estimated_wait_seconds, queued.reason)


def operation_answer(info: OperationInfo) -> OperationAnswer:
    outcome = info.outcome if info.status == "done" else None
    return OperationAnswer(
        operation_id=info.id,
        kind=info.kind,
        status=info.status,
        priority=info.priority,
        queues=info.queues,
        partition=info.partition,
        partitions=info.partitions,
        messages=info.messages,
        queue_position=info.position,
        created_at=timestamp(info.created_at),
        due_at=timestamp_or_none(info.due_at),
        completed_at=timestamp_or_none(info.completed_at),
        retries=info.retries,
        worker=info.worker,
        error=info.error,
        code=info.error_code,
        receipts=None if outcome is None or outcome.placed is None else [_receipt(one) for one in outcome.pushed()],
        acks=None if outcome is None or outcome.acks is None else [_ack(one) for one in outcome.acks],
    )


def _receipt(receipt: Receipt) -> OperationReceipt:
    assert receipt.status in ("queued", "duplicate", "scheduled"), "it was applied"
    return OperationReceipt(
        index=receipt.index,
        status=receipt.status,
        message_id=receipt.message_id,
        partition_id=str(receipt.partition_id),
        queueName=receipt.queue,
        partition=receipt.partition,
        seq=receipt.seq,
        scheduleId=UNSET if receipt.schedule_id is None else str(receipt.schedule_id),
        dueAt=timestamp_or_none(receipt.due_at) or UNSET,
    )


def _ack(outcome: AckOutcome) -> OperationAck:
    return OperationAck(
        index=outcome.index,
        success=outcome.success,
        error=ack_error(outcome),
        noop=outcome.noop,
        lease_released=outcome.released,
        dlq=outcome.dead,
        messages=outcome.messages,
        queue_name=outcome.queue,
        partition_name=outcome.partition,
    )


def operations_answer(page: OperationPage) -> OperationsAnswer:
    return OperationsAnswer([operation_answer(info) for info in page.items], page.next_cursor)


def stats_answer(worker_id: str, stats: OperationStats) -> OperationStatsAnswer:
    return OperationStatsAnswer(
        worker_id=worker_id,
        pending=[
            DepthRow(one.kind, one.operations, one.messages, one.bytes, timestamp_or_none(one.oldest_at))
            for one in stats.pending
        ],
        failed=stats.failed,
        load_managed=stats.managed,
        load=[LoadRow(one.kind, one.answer, one.load, one.seconds, one.queued, one.rejected) for one in stats.load],
        applied=stats.applied,
        applied_failed=stats.applied_failed,
        applied_per_second=stats.applied_per_second,
    )
