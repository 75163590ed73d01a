"""Samples aggregated into longer time spans, for charts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from lockstep.core.maintenance import Sample


class SampleSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one time span, over all of their queues."""

    at: datetime
    """The start of the span."""
    seconds: float
    """The time that the samples cover: the longest such time of any queue."""
    pushed: int
    completed: int
    dead: int
    pending: int
    """At the end of the span: the sum over the queues."""
    lag_seconds: float
    """The maximum over the queues."""

    def rate(self, count: int) -> float:
        """A number as a rate per second."""
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
    """Time spans of one length, counted from the epoch. Spans without a sample are left out."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._buckets: dict[int, _Bucket] = {}

    def add(self, sample: Sample) -> None:
        """Add a sample. Samples come in order of time."""
        number = int(sample.at.timestamp() // self._seconds)
        self._buckets.setdefault(number, _Bucket()).add(sample)

    def spans(self) -> list[SampleSpan]:
        """The spans, in order of time."""
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
