"""Samples joined into longer spans of time, for charts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from lockstep.core.maintenance import Sample


class SampleSpan(msgspec.Struct, frozen=True, kw_only=True):
    """What the samples of one span of time say, over all of their queues."""

    at: datetime
    """Its beginning."""
    seconds: float
    """How much time the samples cover: of the queue for which it is most."""
    pushed: int
    completed: int
    dead: int
    pending: int
    """At its end: the sum over the queues."""
    lag_seconds: float
    """The longest."""

    def rate(self, count: int) -> float:
        """So many, per second."""
        return count / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class _Bucket:
    pushed: int = 0
    completed: int = 0
    dead: int = 0
    lag_seconds: float = 0.0
    pending: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        self.pushed += sample.pushed
        self.completed += sample.completed
        self.dead += sample.dead
        self.lag_seconds = max(self.lag_seconds, sample.lag_seconds)
        self.pending[sample.queue] = sample.pending
        self.seconds[sample.queue] = self.seconds.get(sample.queue, 0.0) + sample.seconds


class Buckets:
    """Spans of one length, counted from the epoch. Those without a sample are left out."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._buckets: dict[int, _Bucket] = {}

    def add(self, sample: Sample) -> None:
        """Samples come in the order of their time."""
        number = int(sample.at.timestamp() // self._seconds)
        self._buckets.setdefault(number, _Bucket()).add(sample)

    def spans(self) -> list[SampleSpan]:
        """By time."""
        return [self._span(number, self._buckets[number]) for number in sorted(self._buckets)]

    def _span(self, number: int, bucket: _Bucket) -> SampleSpan:
        return SampleSpan(
            at=datetime.fromtimestamp(number * self._seconds, UTC),
            seconds=max(bucket.seconds.values()),
            pushed=bucket.pushed,
            completed=bucket.completed,
            dead=bucket.dead,
            pending=sum(bucket.pending.values()),
            lag_seconds=bucket.lag_seconds,
        )
