"""When the cursors of a group are due."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from heapq import heapify, heappop, heappush

from lockstep.core.rules import STOPPED, Cursor


class Agenda:
    """The partitions of a group by due_at, then id: a heap whose outdated entries are dropped when met."""

    def __init__(self, cursors: Mapping[int, Cursor]) -> None:
        self._cursors = cursors
        self._heap: list[tuple[datetime, int]] = []

    def note(self, partition_id: int) -> None:
        """The partition's cursor has changed."""
        due_at = self._cursors[partition_id].due_at
        if due_at is None or due_at == STOPPED:
            return
        heappush(self._heap, (due_at, partition_id))
        # A lease that is acknowledged in time leaves an entry at its deadline, so the heap is bounded here.
        if len(self._heap) > 2 * len(self._cursors) + 64:
            self._renew()

    def due(self, now: datetime) -> bool:
        """Whether any partition is due."""
        self._drop_outdated()
        return bool(self._heap) and self._heap[0][0] <= now

    def next_due(self) -> datetime | None:
        """When the next partition is due."""
        self._drop_outdated()
        return self._heap[0][0] if self._heap else None

    def take(self, now: datetime) -> Iterator[int]:
        """The due partitions, earliest first. A caller that takes one must change its cursor and `note` it."""
        while self.due(now):
            yield heappop(self._heap)[1]

    def _drop_outdated(self) -> None:
        while self._heap:
            due_at, partition_id = self._heap[0]
            cursor = self._cursors.get(partition_id)
            if cursor is not None and cursor.due_at == due_at:
                return
            heappop(self._heap)

    def _renew(self) -> None:
        self._heap = [
            (cursor.due_at, partition_id)
            for partition_id, cursor in self._cursors.items()
            if cursor.due_at is not None and cursor.due_at != STOPPED
        ]
        heapify(self._heap)
