"""A queue's options: their names, defaults, ranges, and what follows from them for one delivery."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from math import log10
from typing import Any, Literal, get_args

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
"""As a retry limit: a message that fails is delivered again and again."""
ATTEMPTS_MAX = 2**31 - 2
"""Where failed deliveries are not counted any further: the next one is still an integer of PostgreSQL's."""
BALANCED_PARTITIONS_MAX = 1_000


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be configured about a queue. `configure` replaces all of it."""

    lease_seconds: int = 300
    retry_limit: int = 3
    """Failed deliveries allowed after the first; one more makes the message exhausted. -1 is no limit."""
    retry_delay_ms: int = 1000
    retry_backoff: float = 1.0
    """Each further retry waits this many times longer than the one before; 1 is a fixed delay."""
    retry_delay_ms_max: int = 3_600_000
    on_exhausted: OnExhausted = "dead"
    max_size: int = 0
    """Most pending messages; 0 is no limit."""
    ttl_seconds: int = 3600
    """Kept and echoed."""
    priority: int = 0
    delay_seconds: int = 0
    """A message is visible only once it is this old."""
    window_seconds: int = 0
    """A partition is hidden until its newest message is this old."""
    retention_enabled: bool = False
    retention_seconds: int = 0
    completed_retention_seconds: int = 0
    max_wait_seconds: int = 0
    """A message that has waited longer than this is passed over; 0 is no limit."""
    encryption: bool = False
    compression: Compression = "zstd"
    dead_letter_queue: bool = False
    """Kept and echoed; dead letters are always recorded."""
    dlq_after_max_retries: bool = False
    """Kept and echoed."""
    expire_seconds: int = 0
    """A message that is older than this is not delivered any more; 0 is never. A message may have a time of its own."""
    on_expired: OnExpired = "dead"
    """What becomes of a message that expired: a dead letter, or nothing."""
    dead_queue: str | None = None
    """The queue to which dead letters are pushed, too. It must exist, with neither one of its own nor a max_size."""
    partitions: int = 0
    """So many numbered partitions, over which messages are spread that name no partition; 0 spreads nothing."""
    group_mode: GroupMode = "ordered"
    """How a new group that does not say it itself is served: a lease per partition, or leases on single messages."""

    def exhausted(self, attempts: int) -> bool:
        """Whether a message whose delivery failed for the `attempts`-th time is not delivered again."""
        return self.retry_limit != UNLIMITED and attempts > self.retry_limit

    def retry_delay(self, attempts: int) -> timedelta:
        """How long a message waits after its delivery failed for the `attempts`-th time."""
        factor = 1.0
        if self.retry_backoff > 1:
            # Over 1e15 the factor makes no difference any more; long after that a float overflows.
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


RANGES: dict[str, tuple[float, float]] = {
    "lease_seconds": (1, SECONDS_MAX),
    "retry_limit": (UNLIMITED, RETRY_LIMIT_MAX),
    "retry_delay_ms": (0, MILLISECONDS_MAX),
    "retry_backoff": (1, 100),
    "retry_delay_ms_max": (0, MILLISECONDS_MAX),
    "max_size": (0, COUNT_MAX),
    "ttl_seconds": (0, SECONDS_MAX),
    "priority": (-(2**31), 2**31 - 1),
    "delay_seconds": (0, SECONDS_MAX),
    "window_seconds": (0, SECONDS_MAX),
    "retention_seconds": (0, SECONDS_MAX),
    "completed_retention_seconds": (0, SECONDS_MAX),
    "max_wait_seconds": (0, SECONDS_MAX),
    "expire_seconds": (0, SECONDS_MAX),
    "partitions": (0, BALANCED_PARTITIONS_MAX),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "on_exhausted": get_args(OnExhausted),
    "compression": get_args(Compression),
    "on_expired": get_args(OnExpired),
    "group_mode": get_args(GroupMode),
}
OPTION_NAMES: tuple[str, ...] = QueueOptions.__struct_fields__
PROTOCOL_NAMES = {
    "lease_time": "lease_seconds",
    "retry_delay": "retry_delay_ms",
    "retry_delay_max": "retry_delay_ms_max",
    "ttl": "ttl_seconds",
    "delayed_processing": "delay_seconds",
    "window_buffer": "window_seconds",
    "max_wait_time_seconds": "max_wait_seconds",
    "encryption_enabled": "encryption",
}
"""Options that the protocol calls otherwise: its names in snake_case, and ours."""


def charged(attempts: int) -> int:
    """The failed deliveries with one more."""
    return min(attempts, ATTEMPTS_MAX - 1) + 1


def queue_options(**given: Any) -> QueueOptions:
    """Options from keyword arguments, each checked; what is not given has its default."""
    for name, value in given.items():
        check_option(name, value)
    return _check_together(QueueOptions(**given))


def check_options(options: QueueOptions) -> QueueOptions:
    """The options, each checked. (A struct that Python code builds is not validated by msgspec.)"""
    for name in OPTION_NAMES:
        check_option(name, getattr(options, name))
    return _check_together(options)


def changed_options(options: QueueOptions, changes: Mapping[str, Any]) -> QueueOptions:
    """The options with some of them changed, all checked."""
    for name, value in changes.items():
        check_option(name, value)
    return _check_together(msgspec.structs.replace(options, **changes))


def _check_together(options: QueueOptions) -> QueueOptions:
    if 0 < options.expire_seconds < options.lease_seconds:
        raise InvalidOption(
            f"lease_seconds must not be more than expire_seconds: {options.lease_seconds} > {options.expire_seconds}"
        )
    if type(options.retry_backoff) is int:
        return msgspec.structs.replace(options, retry_backoff=float(options.retry_backoff))
    return options


def check_option(name: str, value: Any) -> None:
    """One option, by itself. Raises InvalidOption."""
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
    kinds = (int, float) if name == "retry_backoff" else (int,)
    low, high = RANGES[name]
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise InvalidOption(
            f"{name} must be a number, not {value!r}"
            if len(kinds) > 1
            else f"{name} must be a whole number, not {value!r}"
        )
    if not low <= value <= high:
        raise InvalidOption(f"{name} must be between {low} and {high}, not {value}")
