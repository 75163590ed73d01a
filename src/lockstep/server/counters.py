"""What a server process counts of its requests."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Sums since the process began."""

    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """By method, route and status."""
    seconds: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """Time spent answering, by method and route; waiting polls included."""
    in_flight: int = 0
    messages_pushed: int = 0
    messages_duplicate: int = 0
    messages_popped: int = 0
    messages_acked: int = 0
    polls_abandoned: int = 0
    """Waiting polls whose client went away."""
