"""A queue's options: names, defaults, ranges, and what follows from them for a delivery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import log10
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from lockstep.core.names import check_name, nearest_of
from lockstep.errors import InvalidName, InvalidOption

OnExhausted = Literal["dead", "stop", "drop"]
OnExpired = Literal["dead", "drop"]
Compression = Literal["zstd", "none"]
GroupMode = Literal["ordered", "shared"]

SECONDS_MAX = 10 * 366 * 86_400
MILLISECONDS_MAX = SECONDS_MAX * 1000
COUNT_MAX = 2**62
RETRY_LIMIT_MAX = 65_536
UNLIMITED = -1
"""As a retry limit: no limit; a message is redelivered until it succeeds."""
ATTEMPTS_MAX = 2**31 - 2
"""Failed deliveries are not counted beyond this, so that the count fits an integer of PostgreSQL."""
BALANCED_PARTITIONS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Option:
    """An option beyond its name, type and default: a row of the table below."""

    help: str
    range: tuple[float, float] | None = None
    wire: str | None = None
    """The protocol's name in snake_case, if it differs."""


_SECONDS = (0, SECONDS_MAX)
_MILLISECONDS = (0, MILLISECONDS_MAX)


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All options of a queue. `configure` replaces all of them.

    This is the table of all options: checks, the types of the protocol, the command line and the reference derive from
    it. Each option except dead_queue is stored in the column of its name.
    """

    lease_seconds: Annotated[
        int,
        Option("Duration of a lease, unless the pop or a renewal sets another.", (1, SECONDS_MAX), "lease_time"),
    ] = 300
    retry_limit: Annotated[
        int,
        Option(
            "Failed deliveries allowed after the first; one more makes the message exhausted. -1 is no limit.",
            (UNLIMITED, RETRY_LIMIT_MAX),
        ),
    ] = 3
    retry_delay_ms: Annotated[
        int, Option("How long a failed message waits before it is delivered again.", _MILLISECONDS, "retry_delay")
    ] = 1000
    retry_backoff: Annotated[
        float,
        Option("Each retry waits this many times longer than the one before; 1 is a fixed delay.", (1, 100)),
    ] = 1.0
    retry_delay_ms_max: Annotated[
        int,
        Option(
            "The longest wait that `retry_backoff` leads to; never less than `retry_delay_ms`.",
            _MILLISECONDS,
            "retry_delay_max",
        ),
    ] = 3_600_000
    on_exhausted: Annotated[
        OnExhausted,
        Option(
            "What happens to an exhausted message: `dead` makes it a dead letter and goes on, `drop` goes on "
            "without it, `stop` holds its partition for this group until an operator decides."
        ),
    ] = "dead"
    max_size: Annotated[int, Option("Maximum number of pending messages; 0 is no limit.", (0, COUNT_MAX))] = 0
    ttl_seconds: Annotated[int, Option("Stored and returned, without effect.", _SECONDS, "ttl")] = 3600
    priority: Annotated[
        int,
        Option("In a pop over a namespace or task, queues with a higher priority come first.", (-(2**31), 2**31 - 1)),
    ] = 0
    delay_seconds: Annotated[
        int, Option("A message is visible only once it is this old.", _SECONDS, "delayed_processing")
    ] = 0
    window_seconds: Annotated[
        int, Option("A partition is hidden until its newest message is this old.", _SECONDS, "window_buffer")
    ] = 0
    retention_enabled: Annotated[
        bool, Option("Whether `retention_seconds` and `completed_retention_seconds` are in force.")
    ] = False
    retention_seconds: Annotated[
        int, Option("Messages older than this are removed, consumed or not; 0 is never.", _SECONDS)
    ] = 0
    completed_retention_seconds: Annotated[
        int, Option("Messages older than this that every group is done with are removed; 0 is never.", _SECONDS)
    ] = 0
    max_wait_seconds: Annotated[
        int,
        Option("Messages that have waited longer are skipped; 0 is no limit.", _SECONDS, "max_wait_time_seconds"),
    ] = 0
    encryption: Annotated[
        bool,
        Option(
            "Messages are stored encrypted; needs the setting `encryption_key`. "
            "Only `lockstep encryption off` switches it off.",
            wire="encryption_enabled",
        ),
    ] = False
    compression: Annotated[
        Compression, Option("`zstd` packs all but small pushes; `none` keeps every message readable in SQL.")
    ] = "zstd"
    dead_letter_queue: Annotated[
        bool, Option("Stored and returned, without effect; dead letters are always recorded.")
    ] = False
    dlq_after_max_retries: Annotated[bool, Option("Stored and returned, without effect.")] = False
    expire_seconds: Annotated[
        int,
        Option("Messages older than this are not delivered; 0 is never. A message may set its own time.", _SECONDS),
    ] = 0
    on_expired: Annotated[OnExpired, Option("What becomes of an expired message: a dead letter, or nothing.")] = "dead"
    dead_queue: Annotated[
        str | None,
        Option("The queue to which dead letters are also pushed. It must exist, without a dead queue or max_size."),
    ] = None
    partitions: Annotated[
        int,
        Option(
            "Number of numbered partitions over which messages without a partition are spread; 0 spreads nothing.",
            (0, BALANCED_PARTITIONS_MAX),
        ),
    ] = 0
    group_mode: Annotated[
        GroupMode,
        Option("How new groups are served unless they say so: a lease per partition, or leases on single messages."),
    ] = "ordered"

    def exhausted(self, attempts: int) -> bool:
        """Whether a message is not delivered again after its delivery failed for the `attempts`-th time."""
        return self.retry_limit != UNLIMITED and attempts > self.retry_limit

    def retry_delay(self, attempts: int) -> timedelta:
        """How long a message waits after its delivery failed for the `attempts`-th time."""
        factor = 1.0
        if self.retry_backoff > 1:
            # Beyond 1e15 the factor makes no difference; far beyond that a float would overflow.
            factor = self.retry_backoff ** min(attempts - 1, 1000, 15 / log10(self.retry_backoff))
        return timedelta(
            milliseconds=min(self.retry_delay_ms * factor, max(self.retry_delay_ms_max, self.retry_delay_ms))
        )

    @property
    def delay(self) -> timedelta:
        return timedelta(seconds=self.delay_seconds)

    @property
    def window(self) -> timedelta:
        return timedelta(seconds=self.window_seconds)

    @property
    def expires_after(self) -> timedelta | None:
        return timedelta(seconds=self.expire_seconds) if self.expire_seconds else None

    @property
    def max_wait(self) -> timedelta | None:
        return timedelta(seconds=self.max_wait_seconds) if self.max_wait_seconds else None


OPTIONS: dict[str, Option] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(QueueOptions, include_extras=True).items()
}
OPTION_NAMES = tuple(OPTIONS)
OPTION_TYPES: dict[str, Any] = get_type_hints(QueueOptions)
DEFAULTS = QueueOptions()
RANGES = {name: option.range for name, option in OPTIONS.items() if option.range is not None}
_CHOICES = {name: get_args(kind) for name, kind in OPTION_TYPES.items() if get_origin(kind) is Literal}
PROTOCOL_NAMES = {option.wire: name for name, option in OPTIONS.items() if option.wire is not None}
"""Maps the protocol's names in snake_case to ours, where they differ."""


def charged(attempts: int) -> int:
    """The number of failed deliveries plus one."""
    return min(attempts, ATTEMPTS_MAX - 1) + 1


def queue_options(**given: Any) -> QueueOptions:
    """Options from keyword arguments, each checked; missing options get their defaults."""
    for name, value in given.items():
        check_option(name, value)
    return _check_together(QueueOptions(**given))


def check_options(options: QueueOptions) -> QueueOptions:
    """Check each option and return them all. (msgspec does not validate a struct built in Python.)"""
    for name in OPTION_NAMES:
        check_option(name, getattr(options, name))
    return _check_together(options)


def changed_options(options: QueueOptions, changes: Mapping[str, Any]) -> QueueOptions:
    """The options with some of them changed, all checked. Raises InvalidOption, also if the change would switch
    encryption off."""
    if options.encryption and changes.get("encryption") is False:
        raise encryption_stays()
    for name, value in changes.items():
        check_option(name, value)
    return _check_together(msgspec.structs.replace(options, **changes))


def encryption_stays() -> InvalidOption:
    return InvalidOption(
        "an option does not switch encryption off: `lockstep encryption off QUEUE` does, or the verb stop_encryption"
    )


def _check_together(options: QueueOptions) -> QueueOptions:
    if 0 < options.expire_seconds < options.lease_seconds:
        raise InvalidOption(
            f"lease_seconds must not be more than expire_seconds: {options.lease_seconds} > {options.expire_seconds}"
        )
    if type(options.retry_backoff) is int:
        return msgspec.structs.replace(options, retry_backoff=float(options.retry_backoff))
    return options


def check_option(name: str, value: Any) -> None:
    """Check a single option. Raises InvalidOption."""
    if name not in OPTION_NAMES:
        raise _unknown_option(name)
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise InvalidOption(f"{name} must be one of {', '.join(_CHOICES[name])}, not {value!r}")
    elif name in RANGES:
        _check_number(name, value)
    elif name == "dead_queue":
        _check_dead_queue(value)
    elif not isinstance(value, bool):
        raise InvalidOption(f"{name} must be true or false, not {value!r}")


def _unknown_option(name: str) -> InvalidOption:
    ours = {option.replace("_", ""): option for option in OPTION_NAMES}
    ours |= {protocol.replace("_", ""): option for protocol, option in PROTOCOL_NAMES.items()}
    nearest = nearest_of(name, ours)
    meant = f"did you mean {ours[nearest]}?" if nearest else f"there are: {', '.join(OPTION_NAMES)}"
    return InvalidOption(f"there is no queue option {name!r}; {meant}")


def _check_dead_queue(name: Any) -> None:
    try:
        if name is not None:
            check_name(name, what="dead_queue")
    except InvalidName as error:
        raise InvalidOption(error.message) from None


def _check_number(name: str, value: Any) -> None:
    kinds = (int, float) if OPTION_TYPES[name] is float else (int,)
    low, high = RANGES[name]
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise InvalidOption(
            f"{name} must be a number, not {value!r}"
            if len(kinds) > 1
            else f"{name} must be a whole number, not {value!r}"
        )
    if not low <= value <= high:
        raise InvalidOption(f"{name} must be between {low} and {high}, not {value}")
