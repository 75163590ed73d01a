"""Queues on the wire: their options under the protocol's names; configuring and clearing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from lockstep.core.policy import DEFAULTS, OPTION_TYPES, OPTIONS, PROTOCOL_NAMES, QueueOptions
from lockstep.core.records import ClearScope, PartitionStats, QueueInfo
from lockstep.core.wire.spelling import renamed, snake
from lockstep.core.wire.times import timestamp_or_none
from lockstep.errors import InvalidOption, UnknownName

_WIRE = {name: option.wire or name for name, option in OPTIONS.items()}
"""The protocol's name of each option, in snake_case."""


def _wire_type(name: str) -> Any:
    option, kind = OPTIONS[name], OPTION_TYPES[name]
    low, high = option.range or (None, None)
    return Annotated[kind, Meta(ge=low, le=high, description=option.help + _unit(name))]


def _unit(name: str) -> str:
    """The unit, which the protocol's names do not contain."""
    if "_seconds" in name:
        return " In seconds."
    return " In milliseconds." if "_ms" in name else ""


_Fields = msgspec.defstruct(
    "_Fields",
    [(wire, _wire_type(name), getattr(DEFAULTS, name)) for name, wire in _WIRE.items()],
    rename="camel",
    frozen=True,
    kw_only=True,
)


class Options(_Fields, rename="camel", frozen=True, kw_only=True):  # type: ignore[valid-type, misc, call-arg]
    """A queue's options under the protocol's names."""

    enforce_retry_delay: bool = False
    """Whether a retry delay of 1000 ms is intended; otherwise it counts as 0."""


class ConfigureBody(Struct):
    queue: str
    namespace: str | None = None
    task: str | None = None
    options: Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/Options"})] = {}
    """All options: missing options are reset to their defaults."""


class ConfigureAnswer(Struct, rename="camel"):
    configured: bool
    queue_id: str
    partition_id: str
    queue: str
    namespace: str
    task: str
    options: Options
    """As requested."""


class UpdateBody(Struct):
    namespace: str | None = None
    task: str | None = None
    options: Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/Options"})] = {}
    """The options to change: missing options keep their values."""


class UpdateAnswer(Struct):
    updated: bool
    queue: str
    namespace: str
    task: str
    options: Options
    """All options now in force."""


class PartitionStatsRow(Struct, rename="camel"):
    partition: str
    total: int
    """Messages from the first one that some group has not done."""
    leased: int
    scheduled: int
    """Scheduled messages."""
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
    """Number of messages removed."""


def options_of(given: Mapping[str, Any]) -> Options:
    """The requested options. Some clients write whole numbers as 5.0. Raises InvalidOption."""
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
    """The options by the protocol's names. The request may use our own names and either spelling. A retry delay under
    our name is always intended."""
    pairs = [(_OWN_NAMES.get(snake(name), name), value) for name, value in given.items()]
    try:
        found = renamed(pairs, Options, what="option")
    except UnknownName as error:
        raise InvalidOption(error.message, **error.details) from None
    if any([snake(name) == "retry_delay_ms" for name in given]):
        found.setdefault("enforceRetryDelay", True)
    return found


def queue_options(asked: Options) -> QueueOptions:
    """The options for the queue.

    Clients of the protocol always send a retry delay of 1000 ms and rely on immediate redelivery, so this value counts
    only if the request says that it is intended.
    """
    values = {name: getattr(asked, wire) for name, wire in _WIRE.items()}
    if not asked.enforce_retry_delay and asked.retry_delay == DEFAULTS.retry_delay_ms:
        values["retry_delay_ms"] = 0
    return QueueOptions(**values)


def shown_options(options: QueueOptions) -> Options:
    """The options in force, with the real retry delay."""
    values = {wire: getattr(options, name) for name, wire in _WIRE.items()}
    return Options(**values, enforce_retry_delay=options.retry_delay_ms > 0)


def option_changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Only the options that are given, as they apply to the queue. Raises InvalidOption."""
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
