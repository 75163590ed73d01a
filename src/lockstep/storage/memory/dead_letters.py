"""Dead letters: finding, redriving and purging them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from lockstep.core import refusals
from lockstep.core.messages import redriven
from lockstep.core.records import DeadLetter, DeadLetterFilter, DeadLetterPage
from lockstep.storage.memory.dead_queue import (
    DeadQueues,
    copy_leased,
    is_copy_done,
    remove_copy,
    send_back,
)
from lockstep.storage.memory.push import push
from lockstep.storage.memory.state import DeadEntry, State


class MemoryDeadLetters:
    """Dead letters."""

    def __init__(self, state: State, dead_queues: DeadQueues) -> None:
        self._state = state
        self._dead_queues = dead_queues

    async def dead_letters(self, where: DeadLetterFilter, *, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        state = self._state
        found = sorted(_matching(state, where), key=lambda entry: (entry.failed_at, entry.id), reverse=True)
        return DeadLetterPage(items=[_shown(entry) for entry in found[offset : offset + limit]], total=len(found))

    async def dead_letter(self, dead_letter_id: int) -> DeadLetter:
        state = self._state
        if dead_letter_id not in state.dead_letters:
            raise refusals.no_dead_letter(dead_letter_id)
        return _shown(state.dead_letters[dead_letter_id])

    async def redrive(self, where: DeadLetterFilter, *, limit: int = 1000, done: bool | None = None) -> int:
        state, now = self._state, self._state.now()
        with_done = where.ids is not None if done is None else done
        free = (one for one in _matching(state, where) if not copy_leased(one, now))
        entries = list(islice((one for one in free if with_done or not is_copy_done(state, one)), limit))
        batches = [redriven(entry.partition.message(entry.seq)) for entry in entries]
        push(state, batches, now, overtake=True)
        for entry in entries:
            remove_copy(state, entry, now)
            if entry.id in state.dead_letters:  # it may have been the dead letter of a copy, and removed with it
                state.remove_dead_letter(entry.id)
        self._dead_queues.tell(batches)
        return len(batches)

    async def redrive_queue(self, queue: str, *, limit: int = 1000) -> int:
        batches = send_back(self._state, queue, limit, self._state.now())
        self._dead_queues.tell(batches)
        return len(batches)

    async def purge(self, where: DeadLetterFilter) -> int:
        state = self._state
        entries = list(_matching(state, where))
        for entry in entries:
            state.remove_dead_letter(entry.id)
        return len(entries)


def _matching(state: State, where: DeadLetterFilter) -> Iterator[DeadEntry]:
    """By id."""
    return (entry for entry in state.dead_letters.values() if _matches(entry, where))


def _matches(entry: DeadEntry, where: DeadLetterFilter) -> bool:
    return (
        (where.ids is None or entry.id in where.ids)
        and where.queue in (None, entry.partition.queue.name)
        and where.partition in (None, entry.partition.name)
        and where.group in (None, entry.group)
        and (where.from_at is None or entry.failed_at >= where.from_at)
        and (where.to_at is None or entry.failed_at < where.to_at)
    )


def _shown(entry: DeadEntry) -> DeadLetter:
    return DeadLetter(
        id=entry.id,
        message=entry.partition.message(entry.seq),
        group=entry.group,
        attempts=entry.attempts,
        error=entry.error,
        failed_at=entry.failed_at,
    )
