"""Queues, partitions, namespaces and tasks on the wire, with their message counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from lockstep.core.overview import LabelInfo, Overview, Spread, rest, total
from lockstep.core.records import Depth, PartitionInfo, QueueInfo
from lockstep.core.wire.pages import Pagination
from lockstep.core.wire.queues import Options, shown_options
from lockstep.core.wire.times import seconds_since, timestamp, timestamp_or_none


class MessageCounts(Struct):
    """Null is unknown: the queue, or one of the queues, is large and was not counted yet."""

    total: int | None
    """Stored messages."""
    pending: int | None
    """The lag of the group that is furthest behind; without groups, all stored messages."""
    processing: int | None
    """Under a live lease, summed over all groups: a message leased by two groups counts twice."""


class FullCounts(MessageCounts, rename="camel"):
    completed: int | None
    """Stored messages that are not pending any more."""
    failed: int
    """Always 0: a failed message is pending again or a dead letter."""
    dead_letter: int | None


class QueueHead(Struct, rename="camel", kw_only=True):
    """The start of every row of a queue."""

    id: str
    name: str
    namespace: str
    task: str
    created_at: str
    partitions: int | None


class QueueRow(QueueHead, rename="camel", kw_only=True):
    messages: MessageCounts
    lag_seconds: float | None
    """The age of the oldest pending message."""
    figures_at: str | None
    """When these figures were counted; null: they are current, or not counted yet, in which case they are null."""


class QueuesAnswer(Struct):
    queues: list[QueueRow]


class PartitionRow(Struct, rename="camel", kw_only=True):
    id: str
    name: str
    queue: str
    created_at: str
    stats: FullCounts
    oldest_message: str | None
    newest_message: str | None


class QueueAnswer(Struct, rename="camel", kw_only=True):
    id: str
    name: str
    namespace: str
    task: str
    created_at: str
    options: Options
    partitions: list[PartitionRow]
    """The first partitions by name, up to the limit; GET /api/v1/resources/partitions lists all of them in pages."""
    totals: FullCounts
    figures_at: str | None
    """When the totals were counted; null: they are current."""


class PartitionsAnswer(Struct):
    partitions: list[PartitionRow]
    pagination: Pagination


class PartitionDepth(Struct):
    partition: str
    pending: int


class DepthAnswer(Struct, rename="camel"):
    queue: str
    group: str
    pending: int | None
    partitions_pending: int | None
    effective_pending: int | None
    """Without messages under a live lease."""
    in_flight: int | None
    """Messages under a live lease."""
    lag_seconds: float | None
    """The age of the oldest pending message."""
    figures_at: str | None
    """When these figures were counted; null: they are current, or not counted yet, in which case they are null."""
    partitions: list[PartitionDepth]
    """Partitions with pending messages, among the first partitions of the queue, up to the limit."""


class LabelCounts(Struct):
    total: int | None
    pending: int | None


class NamespaceRow(Struct):
    namespace: str
    queues: int
    partitions: int | None
    messages: LabelCounts
    figures_at: str | None = msgspec.field(name="figuresAt", default=None)
    """When the oldest of these figures was counted; null: all are current."""


class NamespacesAnswer(Struct):
    namespaces: list[NamespaceRow]


class TaskRow(Struct):
    task: str
    queues: int
    partitions: int | None
    messages: LabelCounts
    figures_at: str | None = msgspec.field(name="figuresAt", default=None)


class TasksAnswer(Struct):
    tasks: list[TaskRow]


class SpreadAnswer(Struct):
    avg: float
    median: float
    min: float
    max: float


class LagAnswer(Struct):
    time: SpreadAnswer | None
    """Seconds."""
    offset: SpreadAnswer | None
    """Messages."""


class Throughput(Struct, rename="camel"):
    """Over the last five minutes, according to samples."""

    ingested_per_second: float
    processed_per_second: float


class OverviewAnswer(Struct):
    queues: int
    partitions: int | None
    namespaces: int
    tasks: int
    messages: FullCounts
    lag: LagAnswer
    throughput: Throughput
    timestamp: str
    figures_at: str | None = msgspec.field(name="figuresAt", default=None)
    """When the oldest of these figures was counted; null: all are current."""


def queue_row(info: QueueInfo, now: datetime) -> QueueRow:
    return QueueRow(
        id=str(info.id),
        name=info.name,
        namespace=info.namespace,
        task=info.task,
        created_at=timestamp(info.created_at),
        partitions=info.partitions,
        messages=MessageCounts(info.messages, info.pending, info.processing),
        lag_seconds=lag_seconds(info.pending, info.oldest_at, now),
        figures_at=timestamp_or_none(info.figures_at),
    )


def full_counts(infos: Iterable[QueueInfo] | Iterable[PartitionInfo]) -> FullCounts:
    """The sums over queues or partitions."""
    counted: list[QueueInfo | PartitionInfo] = list(infos)
    messages, pending = total([info.messages for info in counted]), total([info.pending for info in counted])
    return FullCounts(
        total=messages,
        pending=pending,
        processing=total([info.processing for info in counted]),
        completed=rest(messages, pending),
        failed=0,
        dead_letter=total([info.dead_letters for info in counted]),
    )


def lag_seconds(pending: int | None, oldest_at: datetime | None, now: datetime) -> float | None:
    """The age of the oldest pending message; None if the pending messages are unknown."""
    return None if pending is None else seconds_since(oldest_at, now)


def partition_row(info: PartitionInfo) -> PartitionRow:
    return PartitionRow(
        id=str(info.id),
        name=info.name,
        queue=info.queue,
        created_at=timestamp(info.created_at),
        stats=full_counts([info]),
        oldest_message=timestamp_or_none(info.oldest_at),
        newest_message=timestamp_or_none(info.newest_at),
    )


def queue_answer(info: QueueInfo, partitions: Sequence[PartitionInfo]) -> QueueAnswer:
    return QueueAnswer(
        id=str(info.id),
        name=info.name,
        namespace=info.namespace,
        task=info.task,
        created_at=timestamp(info.created_at),
        options=shown_options(info.options),
        partitions=[partition_row(partition) for partition in partitions],
        totals=full_counts([info]),
        figures_at=timestamp_or_none(info.figures_at),
    )


def depth_answer(depth: Depth, partitions: list[PartitionDepth], now: datetime) -> DepthAnswer:
    return DepthAnswer(
        queue=depth.queue,
        group=depth.group,
        pending=depth.pending,
        partitions_pending=depth.partitions_pending,
        effective_pending=depth.unread,
        in_flight=depth.leased,
        lag_seconds=lag_seconds(depth.pending, depth.oldest_at, now),
        figures_at=timestamp_or_none(depth.figures_at),
        partitions=partitions,
    )


def namespace_row(info: LabelInfo) -> NamespaceRow:
    return NamespaceRow(*_label(info))


def task_row(info: LabelInfo) -> TaskRow:
    return TaskRow(*_label(info))


def _label(info: LabelInfo) -> tuple[str, int, int | None, LabelCounts, str | None]:
    counts = LabelCounts(info.messages, info.pending)
    return info.name, info.queues, info.partitions, counts, timestamp_or_none(info.figures_at)


def overview_answer(overview: Overview, throughput: Throughput, now: datetime) -> OverviewAnswer:
    return OverviewAnswer(
        queues=overview.queues,
        partitions=overview.partitions,
        namespaces=overview.namespaces,
        tasks=overview.tasks,
        messages=overview_counts(overview),
        lag=LagAnswer(_spread(overview.lag_seconds), _spread(overview.lag_messages)),
        throughput=throughput,
        timestamp=timestamp(now),
        figures_at=timestamp_or_none(overview.figures_at),
    )


def overview_counts(overview: Overview) -> FullCounts:
    return FullCounts(
        overview.messages, overview.pending, overview.processing, overview.completed, 0, overview.dead_letters
    )


def _spread(spread: Spread | None) -> SpreadAnswer | None:
    return None if spread is None else SpreadAnswer(spread.average, spread.median, spread.minimum, spread.maximum)
