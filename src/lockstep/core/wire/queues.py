"""Queues on the wire: their options under the protocol's names, configuring and clearing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from lockstep.core.policy import (
    BALANCED_PARTITIONS_MAX,
    COUNT_MAX,
    MILLISECONDS_MAX,
    PROTOCOL_NAMES,
    RETRY_LIMIT_MAX,
    SECONDS_MAX,
    UNLIMITED,
    Compression,
    GroupMode,
    OnExhausted,
    OnExpired,
    QueueOptions,
)
from lockstep.core.records import ClearScope, PartitionStats, QueueInfo
from lockstep.core.wire.spelling import renamed, snake
from lockstep.core.wire.times import timestamp_or_none
from lockstep.errors import InvalidOption, UnknownName

RETRY_DELAY_DEFAULT = 1000

_Seconds = Annotated[int, Meta(ge=0, le=SECONDS_MAX)]
_Milliseconds = Annotated[int, Meta(ge=0, le=MILLISECONDS_MAX)]


class Options(Struct, rename="camel", frozen=True, kw_only=True):
    """A queue's options."""

    lease_time: Annotated[int, Meta(ge=1, le=SECONDS_MAX)] = 300
    retry_limit: Annotated[int, Meta(ge=UNLIMITED, le=RETRY_LIMIT_MAX)] = 3
    """Failed deliveries allowed after the first; -1 is no limit."""
    retry_delay: _Milliseconds = RETRY_DELAY_DEFAULT
    """In force only if it is not the default, or if `enforceRetryDelay` says so."""
    max_size: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0
    ttl: _Seconds = 3600
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    delayed_processing: _Seconds = 0
    window_buffer: _Seconds = 0
    retention_enabled: bool = False
    retention_seconds: _Seconds = 0
    completed_retention_seconds: _Seconds = 0
    max_wait_time_seconds: _Seconds = 0
    encryption_enabled: bool = False
    dead_letter_queue: bool = False
    dlq_after_max_retries: bool = False
    retry_backoff: Annotated[float, Meta(ge=1, le=100)] = 1.0
    retry_delay_max: _Milliseconds = 3_600_000
    on_exhausted: OnExhausted = "dead"
    compression: Compression = "zstd"
    enforce_retry_delay: bool = False
    expire_seconds: _Seconds = 0
    """Older messages are not delivered any more; 0 is never."""
    on_expired: OnExpired = "dead"
    dead_queue: str | None = None
    """The queue to which dead letters are pushed, too."""
    partitions: Annotated[int, Meta(ge=0, le=BALANCED_PARTITIONS_MAX)] = 0
    """So many numbered partitions, over which messages are spread that name no partition."""
    group_mode: GroupMode = "ordered"
    """How new groups are served that do not say it themselves."""


class ConfigureBody(Struct):
    queue: str
    namespace: str | None = None
    task: str | None = None
    options: Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/Options"})] = {}
    """All of them: what is missing is its default again."""


class ConfigureAnswer(Struct, rename="camel"):
    configured: bool
    queue_id: str
    partition_id: str
    queue: str
    namespace: str
    task: str
    options: Options
    """As they were asked for."""


class UpdateBody(Struct):
    namespace: str | None = None
    task: str | None = None
    options: Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/Options"})] = {}
    """Those that change: what is missing stays as it is."""


class UpdateAnswer(Struct):
    updated: bool
    queue: str
    namespace: str
    task: str
    options: Options
    """All of them, as they rule the queue now."""


class PartitionStatsRow(Struct, rename="camel"):
    partition: str
    total: int
    """Messages from the first one on that some group has not done."""
    leased: int
    scheduled: int
    """Messages that wait for their time."""
    average_age_seconds: float | None
    average_lease_age_seconds: float | None
    oldest_at: str | None


class StatsAnswer(Struct):
    queue: str
    partitions: list[PartitionStatsRow]


class RedriveQueueAnswer(Struct):
    queue: str
    redriven: int
    """Messages that went back to where they came from."""


class DeleteQueueAnswer(Struct):
    deleted: bool
    queue: str
    existed: bool


class ClearAnswer(Struct):
    cleared: bool
    queue: str
    partition: str | None
    """None: all of them."""
    scope: ClearScope
    removed: int
    """Messages."""


def options_of(given: Mapping[str, Any]) -> Options:
    """The options that were asked for. Some clients write whole numbers as 5.0. Raises InvalidOption."""
    whole = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in _named(given).items()
    }
    try:
        return msgspec.convert(whole, Options)
    except msgspec.ValidationError as error:
        raise InvalidOption(f"options: {error}") from None


_OWN_NAMES = {ours: protocol for protocol, ours in PROTOCOL_NAMES.items()}


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options by the names of the protocol. They may have our own names, too, and are in either spelling. Who gives
    a retry delay under our name means it."""
    pairs = [(_OWN_NAMES.get(snake(name), name), value) for name, value in given.items()]
    try:
        found = renamed(pairs, Options, what="option")
    except UnknownName as error:
        raise InvalidOption(error.message, **error.details) from None
    if any([snake(name) == "retry_delay_ms" for name in given]):
        found.setdefault("enforceRetryDelay", True)
    return found


def queue_options(asked: Options) -> QueueOptions:
    """The options as they rule the queue.

    Clients of the protocol send a retry delay of 1000 ms whether they mean it or not, and rely on a redelivery at
    once; so that value counts only for those who say that they mean it.
    """
    enforced = asked.enforce_retry_delay or asked.retry_delay != RETRY_DELAY_DEFAULT
    return QueueOptions(
        lease_seconds=asked.lease_time,
        retry_limit=asked.retry_limit,
        retry_delay_ms=asked.retry_delay if enforced else 0,
        retry_backoff=asked.retry_backoff,
        retry_delay_ms_max=asked.retry_delay_max,
        on_exhausted=asked.on_exhausted,
        max_size=asked.max_size,
        ttl_seconds=asked.ttl,
        priority=asked.priority,
        delay_seconds=asked.delayed_processing,
        window_seconds=asked.window_buffer,
        retention_enabled=asked.retention_enabled,
        retention_seconds=asked.retention_seconds,
        completed_retention_seconds=asked.completed_retention_seconds,
        max_wait_seconds=asked.max_wait_time_seconds,
        encryption=asked.encryption_enabled,
        compression=asked.compression,
        dead_letter_queue=asked.dead_letter_queue,
        dlq_after_max_retries=asked.dlq_after_max_retries,
        expire_seconds=asked.expire_seconds,
        on_expired=asked.on_expired,
        dead_queue=asked.dead_queue,
        partitions=asked.partitions,
        group_mode=asked.group_mode,
    )


def shown_options(options: QueueOptions) -> Options:
    """The options in force. A retry delay is what the queue really waits."""
    return Options(
        lease_time=options.lease_seconds,
        retry_limit=options.retry_limit,
        retry_delay=options.retry_delay_ms,
        retry_backoff=options.retry_backoff,
        retry_delay_max=options.retry_delay_ms_max,
        on_exhausted=options.on_exhausted,
        max_size=options.max_size,
        ttl=options.ttl_seconds,
        priority=options.priority,
        delayed_processing=options.delay_seconds,
        window_buffer=options.window_seconds,
        retention_enabled=options.retention_enabled,
        retention_seconds=options.retention_seconds,
        completed_retention_seconds=options.completed_retention_seconds,
        max_wait_time_seconds=options.max_wait_seconds,
        encryption_enabled=options.encryption,
        compression=options.compression,
        dead_letter_queue=options.dead_letter_queue,
        dlq_after_max_retries=options.dlq_after_max_retries,
        enforce_retry_delay=options.retry_delay_ms > 0,
        expire_seconds=options.expire_seconds,
        on_expired=options.on_expired,
        dead_queue=options.dead_queue,
        partitions=options.partitions,
        group_mode=options.group_mode,
    )


def option_changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given, and no others, as they rule the queue. Raises InvalidOption."""
    asked = options_of(given)
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(Options)}
    names = [fields[name] for name in _named(given) if name != "enforceRetryDelay"]
    return {PROTOCOL_NAMES.get(name, name): getattr(asked, name) for name in names}


def stats_answer(queue: str, stats: Sequence[PartitionStats]) -> StatsAnswer:
    rows = [
        PartitionStatsRow(
            partition=one.partition,
            total=one.total,
            leased=one.leased,
            scheduled=one.scheduled,
            average_age_seconds=one.age_seconds_average,
            average_lease_age_seconds=one.lease_age_seconds_average,
            oldest_at=timestamp_or_none(one.oldest_at),
        )
        for one in stats
    ]
    return StatsAnswer(queue, rows)


def configure_answer(info: QueueInfo, partition_id: int, asked: Options) -> ConfigureAnswer:
    return ConfigureAnswer(
        configured=True,
        queue_id=str(info.id),
        partition_id=str(partition_id),
        queue=info.name,
        namespace=info.namespace,
        task=info.task,
        options=asked,
    )
