"""Counters of a server process for its requests."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

DURATION_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of a histogram, in seconds. One more bucket takes anything longer."""


OTHER = "other"
"""The name that stands for all items without figures of their own."""


class Durations:
    """A histogram of the duration of requests, and of their sizes."""

    __slots__ = ("_counts", "bytes_in", "bytes_out", "seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(DURATION_BOUNDS) + 1)
        self.seconds = 0.0
        self.bytes_in = 0
        self.bytes_out = 0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(DURATION_BOUNDS, seconds)] += 1
        self.seconds += seconds

    def buckets(self) -> Iterator[tuple[str, int]]:
        """How many requests took at most each bound, with the bounds in Prometheus' format."""
        yield from zip([*map(str, DURATION_BOUNDS), "+Inf"], accumulate(self._counts), strict=True)


class ByQueue:
    """Sums by queue. Beyond a maximum number, queues are summed as `other`."""

    __slots__ = ("_queues_max", "sums")

    def __init__(self, queues_max: int) -> None:
        self._queues_max = queues_max
        self.sums: dict[str, int] = {}

    def add(self, queue: str, count: int) -> None:
        sums = self.sums
        if queue in sums:
            sums[queue] += count
        elif len(sums) < self._queues_max:
            sums[queue] = count
        else:
            sums[OTHER] = sums.get(OTHER, 0) + count


@dataclass(slots=True)
class Counters:
    """Sums since the process started."""

    queues_max: int
    """How many queues are counted by name."""

    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """By method, route and status."""
    seconds: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """Time spent answering, by method and route; includes the time that polls wait."""
    durations: dict[str, Durations] = field(default_factory=lambda: defaultdict(Durations))
    """By verb. Requests refused by their head alone are left out, because they would hide the duration of the
    others."""
    in_flight: int = 0
    messages_pushed: int = 0
    messages_duplicate: int = 0
    messages_popped: int = 0
    messages_acked: int = 0
    messages_redelivered: int = 0
    """Messages popped for at least the second time."""
    pushed: ByQueue = field(init=False)
    popped: ByQueue = field(init=False)
    polls_abandoned: int = 0
    """Waiting polls whose client disconnected."""

    def answered(self, low: int, high: int) -> int:
        """How many requests were answered with a status at or above `low` and below `high`."""
        return sum([count for (_, _, status), count in self.requests.items() if low <= status < high])

    def __post_init__(self) -> None:
        self.pushed = ByQueue(self.queues_max)
        self.popped = ByQueue(self.queues_max)
