"""Recent rates of queues, from the samples that a duty takes once a minute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lockstep.cli.arguments import PAGE
from lockstep.client import Client
from lockstep.core.maintenance import Sample

SPAN = timedelta(minutes=40)
BUCKETS = 20
_PAGES_MAX = 20
"""Maximum number of pages of samples to read: with very many queues the charts are shorter."""
_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-~=+*#"


@dataclass(frozen=True, slots=True)
class QueueRates:
    """Messages per second in spans of equal length, newest last."""

    pushed: Sequence[float]
    completed: Sequence[float]

    @property
    def now(self) -> tuple[float, float]:
        """In and out, in the newest span with a sample."""
        return (self.pushed[-1] if self.pushed else 0.0, self.completed[-1] if self.completed else 0.0)


def recent_rates(client: Client, now: datetime) -> dict[str, QueueRates]:
    """By queue. A queue without a sample is left out."""
    begin = now - SPAN
    sums: dict[str, dict[int, tuple[int, int, float]]] = {}
    for sample in _samples(client, begin, now):
        bucket = min(int((sample.at - begin) / SPAN * BUCKETS), BUCKETS - 1)
        pushed, completed, seconds = sums.setdefault(sample.queue, {}).get(bucket, (0, 0, 0.0))
        sums[sample.queue][bucket] = (pushed + sample.pushed, completed + sample.completed, seconds + sample.seconds)
    return {queue: _rates(buckets) for queue, buckets in sums.items()}


def _samples(client: Client, begin: datetime, end: datetime) -> Iterator[Sample]:
    after: Sample | None = None
    for _ in range(_PAGES_MAX):
        page = client.samples(from_at=begin, to_at=end, after=after, limit=PAGE)
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1]


def _rates(buckets: dict[int, tuple[int, int, float]]) -> QueueRates:
    filled = [buckets.get(number, (0, 0, 0.0)) for number in range(max(buckets) + 1)]
    return QueueRates(
        [pushed / seconds if seconds else 0.0 for pushed, _, seconds in filled],
        [completed / seconds if seconds else 0.0 for _, completed, seconds in filled],
    )


def sparkline(values: Sequence[float], *, ascii_only: bool = False) -> str:
    """A bar for each value; the highest bar is the largest value."""
    bars = _ASCII_BARS if ascii_only else _BARS
    top = max(values, default=0.0)
    if top <= 0:
        return bars[0] * len(values)
    return "".join([bars[min(round(value / top * (len(bars) - 1)), len(bars) - 1)] for value in values])
