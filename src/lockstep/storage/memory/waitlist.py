"""The scheduled messages of the memory store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from heapq import heapify, heappop, heappush
from itertools import count

import msgspec

from lockstep.core.crons import Cron
from lockstep.core.messages import Appointment
from lockstep.core.schedules import NewWaiting, Scheduled, ScheduleName, fields_of


class Waitlist:
    """The waiting messages by id, by due time, and by what makes them unique; and the recurring ones by name."""

    def __init__(self) -> None:
        self.by_id: dict[int, Scheduled] = {}
        self.crons: dict[str, Cron] = {}
        self._known: dict[tuple[str, ...], int] = {}
        self._heap: list[tuple[datetime, int]] = []
        """By due time; outdated entries are dropped when they come up."""
        self._ids = count(1)

    def add(self, item: NewWaiting, now: datetime) -> Appointment:
        for name in _names(item.queue, item.partition, item.key, item.transaction_id):
            if name in self._known:
                waiting = self.by_id[self._known[name]]
                return Appointment(waiting.id, waiting.due_at, True)
        waiting = Scheduled(
            id=next(self._ids),
            queue=item.queue,
            partition=item.partition,
            due_at=item.due_at,
            created_at=now,
            key=item.key,
            **fields_of(item.columns),
        )
        self._put(waiting)
        return Appointment(waiting.id, waiting.due_at)

    def move(self, waiting: Scheduled, due: datetime) -> Scheduled:
        moved = msgspec.structs.replace(waiting, due_at=due)
        self._put(moved)
        return moved

    def _put(self, waiting: Scheduled) -> None:
        self.by_id[waiting.id] = waiting
        for name in _names(waiting.queue, waiting.partition, waiting.key, waiting.transaction_id):
            self._known[name] = waiting.id
        heappush(self._heap, (waiting.due_at, waiting.id))
        if len(self._heap) > 2 * len(self.by_id) + 64:
            self._heap = [(one.due_at, one.id) for one in self.by_id.values()]
            heapify(self._heap)

    def remove(self, waiting: Scheduled) -> None:
        del self.by_id[waiting.id]
        for name in _names(waiting.queue, waiting.partition, waiting.key, waiting.transaction_id):
            del self._known[name]

    def remove_of(self, queue: str, partition: str | None = None) -> int:
        """Remove the scheduled messages of a queue, or of one of its partitions; returns how many."""
        gone = [one for one in self.by_id.values() if one.queue == queue and partition in (None, one.partition)]
        for waiting in gone:
            self.remove(waiting)
        return len(gone)

    def find(self, which: ScheduleName) -> Scheduled | None:
        if which.id is not None:
            return self.by_id.get(which.id)
        found = self._known.get((which.queue or "", which.key or ""))
        return None if found is None else self.by_id[found]

    def due(self, now: datetime) -> tuple[list[Scheduled], datetime | None]:
        """All due messages, in due order, and when the next is due. A caller that takes one removes it."""
        found: dict[int, Scheduled] = {}  # a message that was moved to its old place has two entries
        while (first := self._first()) is not None and first.due_at <= now:
            heappop(self._heap)
            found[first.id] = first
        for waiting in found.values():
            heappush(self._heap, (waiting.due_at, waiting.id))
        return list(found.values()), None if first is None else first.due_at

    def _first(self) -> Scheduled | None:
        """The messages that are due first."""
        while self._heap:
            due, schedule_id = self._heap[0]
            waiting = self.by_id.get(schedule_id)
            if waiting is not None and waiting.due_at == due:
                return waiting
            heappop(self._heap)
        return None


def _names(queue: str, partition: str, key: str | None, transaction_id: str | None) -> Iterator[tuple[str, ...]]:
    if key is not None:
        yield queue, key
    if transaction_id is not None:
        yield queue, partition, transaction_id
