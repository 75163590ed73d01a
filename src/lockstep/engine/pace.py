"""Statistics of recent calls of one kind: their duration, their throughput, and when too much waits."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from lockstep.config import Config

_LOOK_SECONDS_MIN = 0.5
_SLOW = 3
"""A call counts as slow when it takes this many times the recent average."""
_SECONDS_SHARE = 0.2
"""Weight of the last call in the average."""
_EACH_SHARE = 0.05
"""Weight of the last request in the average."""
_RATE_KEPT = 0.9
"""A rate is forgotten slowly: a lull does not mean that less can be done."""


@dataclass(slots=True)
class CallCounts:
    """How well the requests of one kind are joined."""

    requests: int = 0
    calls: int = 0
    items: int = 0
    """Messages, acks, pops or renewals in all calls."""
    requests_max: int = 0
    """Most requests in one call."""
    retried_alone: int = 0
    """Requests that were tried alone because their joined call failed."""

    @property
    def round_trips_saved(self) -> int:
        return self.requests - self.calls


@dataclass(frozen=True, slots=True)
class Crowd:
    """The requests of one kind that wait for their call, and how recent calls went."""

    requests: int = 0
    bytes: int = 0
    oldest_seconds: float = 0.0
    """How long the oldest of them has waited."""
    fastest_seconds: float = 0.0
    """The time of the fastest call; while several are in flight and none ends, at least how long that has lasted."""

    def __or__(self, other: Crowd) -> Crowd:
        """Both as one kind: the slower one counts."""
        return Crowd(
            self.requests + other.requests,
            self.bytes + other.bytes,
            max(self.oldest_seconds, other.oldest_seconds),
            max(self.fastest_seconds, other.fastest_seconds),
        )


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of joined calls. A single request that exceeds them goes alone."""

    requests_max: int
    messages_max: int
    bytes_max: int
    messages_min: int
    """A second call beside one in flight starts only for at least this many messages."""
    patience_seconds: float
    calls_late_max: int
    """Most calls in flight while earlier ones are slow: the other connections stay free for everything else."""
    messages_large: int
    """A request of this many messages in few items gains nothing from company: it goes alone, and does not wait for
    others to end. A request of many items does gain, because others may have items for the same partitions."""
    calls_large_max: int
    """Most large calls in flight: the other connections stay free for everything else."""
    calls_large_alone_max: int
    """The same while other kinds do not need them."""
    lock_seconds: float
    """A first attempt waits this long for a lock, or longer while all calls are slow."""
    lock_seconds_max: float
    crowd_requests: int
    """Waiting requests are a crowd above this number or size, or if they would take more than this many seconds."""
    crowd_bytes: int
    crowd_seconds: float
    crowd_messages_min: int
    """Fewer messages are never a crowd."""

    @classmethod
    def of(cls, config: Config) -> CallLimits:
        return cls(
            requests_max=config.call_requests_max if config.batching else 1,
            messages_max=config.call_messages_max,
            bytes_max=config.call_bytes_max,
            messages_min=config.call_messages_min if config.batching else 0,
            patience_seconds=config.call_patience_seconds,
            calls_late_max=max(config.pool_connections_max // 2, 1),
            messages_large=config.call_messages_large,
            calls_large_max=max(config.pool_connections_max // 2, 1),
            calls_large_alone_max=config.pool_connections_max,
            lock_seconds=config.call_lock_seconds,
            lock_seconds_max=max(config.lock_timeout_seconds, config.call_lock_seconds),
            crowd_requests=config.load_requests_max,
            crowd_bytes=config.load_bytes_max,
            crowd_seconds=config.load_wait_seconds_max,
            crowd_messages_min=config.load_busy_messages_max,
        )


class Pace:
    """What is known about recent calls."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self.seconds_each = 0.0
        """Average time of a call."""
        self.messages_each = 1.0
        """Average size of a request that had to wait."""
        self.messages_per_second = 0.0
        """The highest recent rate, which includes everything that takes time beside the calls."""
        self.crowd_messages: float = limits.crowd_messages_min
        """More messages than this take too long."""
        self.ended_at = 0.0
        """When the last call ended well."""
        self.patience_seconds = limits.patience_seconds
        """How long a call may take before it no longer holds up the next one."""
        self.lock_seconds = limits.lock_seconds
        """How long a first attempt waits for a lock. While all calls are slow, giving up early would not help."""
        self._done_messages = 0
        self._fastest_seconds = 0.0
        self._fastest_before = 0.0
        self._looked_at = time.monotonic()

    def note_waiting(self, messages: int) -> None:
        """A request has to wait."""
        self.messages_each += _EACH_SHARE * (messages - self.messages_each)

    def note_ended(self, began: float, messages: int) -> None:
        """A call has succeeded. The fastest one says most: the others may have waited for locks."""
        self.ended_at = asyncio.get_running_loop().time()
        seconds = self.ended_at - began
        if seconds < self._fastest_seconds or self._fastest_seconds == 0.0:
            self._fastest_seconds = seconds
        # A single slow call must not make all others seem slow. If all are slow, a few more show it.
        self.seconds_each += _SECONDS_SHARE * (min(seconds, self.patience_seconds) - self.seconds_each)
        limits, slow = self._limits, _SLOW * self.seconds_each
        self.patience_seconds = max(limits.patience_seconds, slow)
        self.lock_seconds = min(max(limits.lock_seconds, slow), limits.lock_seconds_max)
        self._done_messages += messages

    def take_fastest(self, stalled_seconds: float | None) -> float:
        """The time of the fastest call since the last look. No call ends in a store that stalls: then it is the time
        from before, or the age of the youngest of several calls in flight, given here."""
        fastest, self._fastest_seconds = self._fastest_seconds, 0.0
        if not fastest and stalled_seconds is not None:
            fastest = max(self._fastest_before, stalled_seconds)
        self._fastest_before = fastest
        return fastest

    def look(self, now: float) -> None:
        """Learn how many messages are a crowd: what takes longer, at the recent rate, than requests may wait."""
        seconds = now - self._looked_at
        if seconds < _LOOK_SECONDS_MIN:
            return
        self._looked_at = now
        done, self._done_messages = self._done_messages, 0
        self.messages_per_second = max(done / seconds, self.messages_per_second * _RATE_KEPT)
        many = self.messages_per_second * self._limits.crowd_seconds
        self.crowd_messages = max(many, self._limits.crowd_messages_min)
