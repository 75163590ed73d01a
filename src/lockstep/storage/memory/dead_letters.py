"""Dead letters: finding them, pushing them again, forgetting them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice

from lockstep.core import refusals
from lockstep.core.messages import Batch, redriven
from lockstep.core.records import DeadLetter, DeadLetterFilter, DeadLetterPage
from lockstep.storage.memory.dead_queue import copy_leased, is_copy_done, remove_copy
from lockstep.storage.memory.push import push
from lockstep.storage.memory.state import DeadEntry, State


def dead_letters(state: State, where: DeadLetterFilter, *, limit: int, offset: int) -> DeadLetterPage:
    found = sorted(_matching(state, where), key=lambda entry: (entry.failed_at, entry.id), reverse=True)
    return DeadLetterPage(items=[_shown(entry) for entry in found[offset : offset + limit]], total=len(found))


def dead_letter(state: State, dead_letter_id: int) -> DeadLetter:
    if dead_letter_id not in state.dead_letters:
        raise refusals.no_dead_letter(dead_letter_id)
    return _shown(state.dead_letters[dead_letter_id])


def redrive(state: State, where: DeadLetterFilter, *, limit: int, done: bool | None, now: datetime) -> Sequence[Batch]:
    with_done = where.ids is not None if done is None else done
    free = (one for one in _matching(state, where) if not copy_leased(one, now))
    entries = list(islice((one for one in free if with_done or not is_copy_done(state, one)), limit))
    batches = [redriven(entry.partition.message(entry.seq)) for entry in entries]
    push(state, batches, now, overtake=True)
    for entry in entries:
        remove_copy(state, entry, now)
        if entry.id in state.dead_letters:  # it may have been the dead letter of a copy, and gone with that
            state.remove_dead_letter(entry.id)
    return batches


def purge(state: State, where: DeadLetterFilter) -> int:
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
