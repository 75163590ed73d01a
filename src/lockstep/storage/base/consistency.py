"""Checks and repairs of the stored data."""

from __future__ import annotations

from typing import Protocol

from lockstep.core.maintenance import Place, Verified
from lockstep.core.records import Problem


class Consistency(Protocol):
    """Verifies every invariant of the stored data, and repairs what can be recomputed."""

    async def verify(self, *, queue: str | None = None) -> list[Problem]:
        """Check every invariant of the stored data; returns the violations. Raises QueueNotFound."""

    async def repair(self, *, queue: str | None = None) -> list[Problem]:
        """Verify, and recompute derived data; returns the violations, and marks those that are repaired."""

    async def verify_slice(self, *, after: Place | None = None, partitions: int) -> Verified:
        """Verify the next slice of one queue: up to this many partitions, or other items; the last slices of a queue
        check what belongs to the whole queue. An item that cannot be verified in time is a problem of the kind
        `unverified`, and the walk continues after it."""
