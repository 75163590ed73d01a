"""What the duties keep beside the messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from lockstep.core.maintenance import DutyInfo, Removal, RemovalKind, Sample
from lockstep.core.statistics import ServerSample
from lockstep.storage.memory.state import Queue


@dataclass(slots=True)
class Sums:
    """The seqs that a queue and its groups were at when the last sample was taken."""

    at: datetime
    seqs: int
    acked: dict[str, int]


@dataclass(slots=True)
class Books:
    """What the duties keep beside the messages."""

    duties: dict[str, DutyInfo] = field(default_factory=dict)
    removals: dict[tuple[datetime, str, RemovalKind], Removal] = field(default_factory=dict)
    samples: dict[tuple[datetime, str], Sample] = field(default_factory=dict)
    server_samples: dict[tuple[datetime, str], ServerSample] = field(default_factory=dict)
    sums: dict[int, Sums] = field(default_factory=dict)
    """By queue id."""
    empty: dict[int, tuple[int, datetime]] = field(default_factory=dict)
    """Partition id to the last seq with which it was found empty, and since when."""
    clock_seen_at: datetime | None = None

    def note_removal(self, queue: Queue, kind: RemovalKind, *, messages: int, partitions: int, now: datetime) -> None:
        at = now.replace(second=0, microsecond=0)
        before = self.removals.get((at, queue.name, kind))
        self.removals[at, queue.name, kind] = Removal(
            at=at,
            queue=queue.name,
            kind=kind,
            messages=messages + (before.messages if before else 0),
            partitions=partitions + (before.partitions if before else 0),
        )
