"""Consumer groups on the wire: lists of them, their lag, deleting and seeking."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct

from lockstep.core.records import GroupInfo, PartitionLag, Position, SeekPreview, SparkStreamInfo
from lockstep.core.wire.resources import lag_seconds
from lockstep.core.wire.times import Time, parse_time, seconds_since, timestamp, timestamp_or_none
from lockstep.errors import InvalidRequest

LAGGING_SECONDS = 300
GroupState = Literal["Stable", "Lagging", "Dead"]


class GroupRow(Struct, rename="camel"):
    """A group on one queue."""

    name: str
    topics: list[str]
    queue_name: str
    members: int | None
    """Number of live leases: members do not register."""
    partitions_with_lag: int | None
    total_lag: int | None
    in_flight: int | None
    """Messages of the lag that are under a live lease."""
    unread: int | None
    """The other messages of the lag."""
    max_time_lag: float | None
    """Seconds: the age of the oldest message that the group has not done."""
    figures_at: str | None
    """When these figures were counted; null: they are current, or not counted yet. Figures not counted yet are null."""
    state: GroupState | None
    """Lagging above 300 seconds; Dead if the group has a cursor in no partition; null while neither is known."""
    subscription_mode: str
    subscription_timestamp: str | None
    subscription_created_at: str
    paused_at: str | None
    """Since when nothing is delivered to the group because it is paused."""


class GroupPartition(Struct, rename="camel"):
    partition: str
    partition_id: str
    worker_id: str | None
    """Always null: leases do not record a consumer."""
    last_consumed_at: str | None
    total_consumed: int
    """The number of messages of the partition that the group counts as done."""
    offset_lag: int
    in_flight: int
    """Messages of the lag that are under a live lease."""
    unread: int
    """The other messages of the lag."""
    time_lag_seconds: float
    lease_active: bool


class GroupPartitions(Struct):
    partitions: list[GroupPartition]


class LaggingRow(Struct):
    consumer_group: str
    queue_name: str
    partition_name: str
    partition_id: str
    worker_id: str | None
    offset_lag: int
    in_flight: int
    unread: int
    time_lag_seconds: float
    lag_hours: float
    oldest_unconsumed_at: str | None
    last_consumed_at: str | None


class SparkStreamRow(Struct, rename="camel"):
    """A Spark stream on one queue: it has one position for the whole queue, not one per partition."""

    id: str
    name: str
    kind: Literal["spark"]
    queue_name: str
    total_lag: int
    max_time_lag: float
    """Seconds: the age of the oldest unread message."""
    created_at: str
    updated_at: str
    held_until: str
    """Retention keeps unread messages until this time, even if the stream stays silent."""


class DeleteGroupAnswer(Struct, rename="camel", omit_defaults=True):
    success: bool
    consumer_group: str
    deleted_partitions: int
    metadata_deleted: bool
    queue_name: str | None = None


class SubscriptionBody(Struct, rename="camel"):
    subscription_timestamp: Time


class SubscriptionAnswer(Struct, rename="camel"):
    success: bool
    consumer_group: str
    new_timestamp: str
    rows_updated: int


class PauseBody(Struct):
    paused: bool


class PauseAnswer(Struct, rename="camel"):
    success: bool
    consumer_group: str
    queue_name: str
    paused: bool


class SeekBody(Struct, rename="camel"):
    to_end: bool = False
    timestamp: Time | None = None


class SeekPreviewAnswer(Struct, rename="camel"):
    consumer_group: str
    queue_name: str
    partitions: int
    """Partitions examined."""
    read_again: int
    """Messages that are done and would be delivered again."""
    skipped: int
    """Messages that are not done and would no longer be delivered."""
    leases: int
    """Partitions under a live lease, which would be lost."""
    complete: bool
    """Whether all partitions were examined."""


class SeekAnswer(Struct, rename="camel"):
    success: bool
    consumer_group: str
    queue_name: str
    seek_to_end: bool
    target_timestamp: str | None
    partitions_updated: int


def group_row(info: GroupInfo, now: datetime) -> GroupRow:
    seconds = lag_seconds(info.lag, info.oldest_at, now)
    return GroupRow(
        name=info.name,
        topics=[info.queue],
        queue_name=info.queue,
        members=info.leases,
        partitions_with_lag=info.partitions_with_lag,
        total_lag=info.lag,
        in_flight=info.in_flight,
        unread=info.unread,
        max_time_lag=seconds,
        figures_at=timestamp_or_none(info.figures_at),
        state=_state(info, seconds),
        subscription_mode=info.subscription.mode,
        subscription_timestamp=timestamp_or_none(info.subscription.from_at),
        subscription_created_at=timestamp(info.created_at),
        paused_at=timestamp_or_none(info.paused_at),
    )


def spark_stream_row(info: SparkStreamInfo, now: datetime) -> SparkStreamRow:
    return SparkStreamRow(
        id=info.id,
        name=info.name,
        kind=info.kind,
        queue_name=info.queue,
        total_lag=info.lag,
        max_time_lag=seconds_since(info.oldest_at, now),
        created_at=timestamp(info.created_at),
        updated_at=timestamp(info.updated_at),
        held_until=timestamp(info.held_until),
    )


def _state(info: GroupInfo, seconds: float | None) -> GroupState | None:
    if info.partitions == 0:
        return "Dead"
    if seconds is None:
        return None
    return "Lagging" if seconds > LAGGING_SECONDS else "Stable"


def group_partitions(lags: Sequence[PartitionLag], now: datetime) -> GroupPartitions:
    return GroupPartitions([_group_partition(lag, now) for lag in lags])


def _group_partition(lag: PartitionLag, now: datetime) -> GroupPartition:
    return GroupPartition(
        partition=lag.partition,
        partition_id=str(lag.partition_id),
        worker_id=None,
        last_consumed_at=timestamp_or_none(lag.consumed_at),
        total_consumed=lag.acked,
        offset_lag=lag.lag,
        in_flight=lag.in_flight,
        unread=lag.unread,
        time_lag_seconds=seconds_since(lag.oldest_at, now),
        lease_active=lag.leased,
    )


def lagging_row(lag: PartitionLag, now: datetime) -> LaggingRow:
    seconds = seconds_since(lag.oldest_at, now)
    return LaggingRow(
        consumer_group=lag.group,
        queue_name=lag.queue,
        partition_name=lag.partition,
        partition_id=str(lag.partition_id),
        worker_id=None,
        offset_lag=lag.lag,
        in_flight=lag.in_flight,
        unread=lag.unread,
        time_lag_seconds=seconds,
        lag_hours=round(seconds / 3600, 2),
        oldest_unconsumed_at=timestamp_or_none(lag.oldest_at),
        last_consumed_at=timestamp_or_none(lag.consumed_at),
    )


def position_of(body: SeekBody) -> Position:
    if body.to_end:
        return Position("end")
    if body.timestamp is None:
        raise InvalidRequest("a seek needs toEnd or timestamp")
    return Position("time", at=parse_time(body.timestamp, what="timestamp"))


def seek_preview_answer(queue: str, group: str, preview: SeekPreview) -> SeekPreviewAnswer:
    return SeekPreviewAnswer(
        group,
        queue,
        preview.partitions,
        preview.read_again,
        preview.skipped,
        preview.leases,
        preview.complete,
    )


def seek_answer(queue: str, group: str, position: Position, moved: int) -> SeekAnswer:
    return SeekAnswer(
        success=True,
        consumer_group=group,
        queue_name=queue,
        seek_to_end=position.kind == "end",
        target_timestamp=timestamp_or_none(position.at),
        partitions_updated=moved,
    )
