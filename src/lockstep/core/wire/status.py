"""The state of the whole store and of its queues, on the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from lockstep.core.buckets import SampleSpan
from lockstep.core.overview import total
from lockstep.core.records import PartitionInfo, QueueInfo
from lockstep.core.wire.analytics import Point, TimeRange, WorkerRow
from lockstep.core.wire.pages import Pagination
from lockstep.core.wire.queues import Options, shown_options
from lockstep.core.wire.resources import FullCounts, PartitionRow, QueueHead, full_counts, lag_seconds, partition_row
from lockstep.core.wire.times import timestamp, timestamp_or_none


class StatusQueue(QueueHead, rename="camel", kw_only=True):
    messages: FullCounts
    lag_seconds: float | None
    """The age of the oldest pending message."""
    figures_at: str | None
    """When these figures were counted; null: they are current, or not counted yet, in which case they are null."""


class LeaseSums(Struct, rename="camel"):
    active: int | None
    """One per partition and group."""
    partitions_with_leases: int | None
    """Null if there are too many to count by partition."""
    figures_at: str | None = None
    """When the leases were counted; null: they are current."""


class DeadLetterSums(Struct, rename="camel"):
    total_messages: int | None
    affected_queues: int | None


class Failures(Struct, rename="camel"):
    """Answers of these worker processes since each was started."""

    client_errors: int
    server_errors: int


class StatusAnswer(Struct, rename="camel", kw_only=True):
    time_range: TimeRange
    bucket_minutes: int
    point_count: int
    throughput: list[Point]
    queues: list[StatusQueue]
    messages: FullCounts
    leases: LeaseSums
    dead_letter_queue: DeadLetterSums
    workers: list[WorkerRow]
    """The process that answered, and the other processes behind the same port; other machines report their own."""
    errors: Failures
    buffer_bytes_lost: int
    """The machine buffered and pushed these, and the database has lost them. Nothing is drained until an operator
    accepts the loss."""
    insecure: bool
    """Whether everybody who reaches the server over a network may use it."""


class RecentRates(Struct, rename="camel"):
    """The recent activity of a queue, according to samples."""

    ingested_per_second: list[float]
    """Newest last."""
    processed_per_second: list[float]


class StatusQueueRow(StatusQueue, rename="camel", kw_only=True):
    recent: RecentRates | None
    """Null if it was not requested."""


QueueOrder = Literal["name", "pending", "lag", "processing", "deadLetters", "messages", "partitions", "created"]


class StatusQueuesAnswer(Struct):
    queues: list[StatusQueueRow]
    pagination: Pagination


class StatusQueueConfig(StatusQueue, rename="camel", kw_only=True):
    config: Options


class StatusQueueAnswer(Struct):
    queue: StatusQueueConfig
    partitions: list[PartitionRow]
    """The first partitions by name, up to the limit."""
    totals: FullCounts


class BufferRow(Struct, rename="camel", kw_only=True):
    """How the process that answered joins the requests of one verb into calls of the store."""

    verb: str
    requests: int
    calls: int
    items: int
    round_trips_saved: int
    requests_max: int
    retried_alone: int


class BuffersAnswer(Struct):
    buffers: list[BufferRow]


class RefreshAnswer(Struct, rename="camel"):
    success: bool
    queues_sampled: int
    timestamp: str


def _fields(info: QueueInfo, now: datetime) -> dict[str, Any]:
    return {
        "id": str(info.id),
        "name": info.name,
        "namespace": info.namespace,
        "task": info.task,
        "created_at": timestamp(info.created_at),
        "partitions": info.partitions,
        "messages": full_counts([info]),
        "lag_seconds": lag_seconds(info.pending, info.oldest_at, now),
        "figures_at": timestamp_or_none(info.figures_at),
    }


def status_queue(info: QueueInfo, now: datetime) -> StatusQueue:
    return StatusQueue(**_fields(info, now))


def status_queue_row(info: QueueInfo, now: datetime, spans: Sequence[SampleSpan] | None) -> StatusQueueRow:
    return StatusQueueRow(**_fields(info, now), recent=None if spans is None else _recent(spans))


def _recent(spans: Sequence[SampleSpan]) -> RecentRates:
    return RecentRates([span.rate(span.pushed) for span in spans], [span.rate(span.completed) for span in spans])


_FIGURES: Mapping[str, Callable[[QueueInfo], float | None]] = {
    "pending": lambda info: info.pending,
    "lag": lambda info: -info.oldest_at.timestamp() if info.oldest_at is not None and info.pending else None,
    "processing": lambda info: info.processing,
    "deadLetters": lambda info: info.dead_letters,
    "messages": lambda info: info.messages,
    "partitions": lambda info: info.partitions,
    "created": lambda info: info.created_at.timestamp(),
}


def queues_in_order(infos: Sequence[QueueInfo], *, search: str | None, order: QueueOrder) -> list[QueueInfo]:
    """The queues whose names contain a text, in the requested order. The input is sorted by name."""
    wanted = (search or "").casefold()
    found = [info for info in infos if wanted in info.name.casefold()]
    if order == "name":
        return found
    figure = _FIGURES[order]
    return sorted(found, key=lambda info: (figure(info) is None, -(figure(info) or 0)))


def status_queue_answer(info: QueueInfo, partitions: Sequence[PartitionInfo], now: datetime) -> StatusQueueAnswer:
    return StatusQueueAnswer(
        StatusQueueConfig(**_fields(info, now), config=shown_options(info.options)),
        [partition_row(partition) for partition in partitions],
        full_counts([info]),
    )


def dead_letter_sums(infos: Sequence[QueueInfo]) -> DeadLetterSums:
    dead_letters = total([info.dead_letters for info in infos])
    affected = None if dead_letters is None else len([info for info in infos if info.dead_letters])
    return DeadLetterSums(dead_letters, affected)
