"""The state of the whole store, and of its queues, on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from lockstep.core.records import PartitionInfo, QueueInfo
from lockstep.core.wire.analytics import Point, TimeRange, WorkerRow
from lockstep.core.wire.pages import Pagination
from lockstep.core.wire.queues import Options, shown_options
from lockstep.core.wire.resources import FullCounts, PartitionRow, full_counts, partition_row
from lockstep.core.wire.times import seconds_since, timestamp, timestamp_or_none


class StatusQueue(Struct, rename="camel", kw_only=True):
    id: str
    name: str
    namespace: str
    task: str
    created_at: str
    partitions: int
    messages: FullCounts
    lag_seconds: float
    """The age of the oldest pending message."""
    figures_at: str | None
    """When these figures were counted; null: just now."""


class Leases(Struct, rename="camel"):
    active: int
    """One per partition and group."""
    partitions_with_leases: int | None
    """Null if there are too many to tell them apart."""
    figures_at: str | None = None
    """When the leases were counted; null: just now."""


class DeadLetterSums(Struct, rename="camel"):
    total_messages: int
    affected_queues: int


class Failures(Struct, rename="camel"):
    """Answers of these workers, since each began."""

    client_errors: int
    server_errors: int


class StatusAnswer(Struct, rename="camel", kw_only=True):
    time_range: TimeRange
    bucket_minutes: int
    point_count: int
    throughput: list[Point]
    queues: list[StatusQueue]
    messages: FullCounts
    leases: Leases
    dead_letter_queue: DeadLetterSums
    workers: list[WorkerRow]
    """The process that answered, and the others behind the same port; other machines have their own."""
    errors: Failures
    buffer_bytes_lost: int
    """The machine had buffered and pushed them, and the database has lost them. Nothing is drained until that is
    accepted."""


class StatusQueuesAnswer(Struct):
    queues: list[StatusQueue]
    pagination: Pagination


class StatusQueueConfig(StatusQueue, rename="camel", kw_only=True):
    config: Options


class StatusQueueAnswer(Struct):
    queue: StatusQueueConfig
    partitions: list[PartitionRow]
    """The first ones by name, up to the limit."""
    totals: FullCounts


class BufferRow(Struct, rename="camel", kw_only=True):
    """How the requests of one verb are joined into calls of the store, by the process that answered."""

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
        "lag_seconds": seconds_since(info.oldest_at, now),
        "figures_at": timestamp_or_none(info.figures_at),
    }


def status_queue(info: QueueInfo, now: datetime) -> StatusQueue:
    return StatusQueue(**_fields(info, now))


def status_queue_answer(info: QueueInfo, partitions: Sequence[PartitionInfo], now: datetime) -> StatusQueueAnswer:
    return StatusQueueAnswer(
        StatusQueueConfig(**_fields(info, now), config=shown_options(info.options)),
        [partition_row(partition) for partition in partitions],
        full_counts([info]),
    )


def dead_letter_sums(infos: Sequence[QueueInfo]) -> DeadLetterSums:
    return DeadLetterSums(
        sum([info.dead_letters for info in infos]), len([info for info in infos if info.dead_letters])
    )
