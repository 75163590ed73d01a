"""Dead queues: pushing dead letters to them, and sending them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import islice

from lockstep.core.dead_queue import Origin, dead_copy, origin_of, sent_back
from lockstep.core.messages import Batch, Message
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import Arrival, arrivals_of
from lockstep.storage.memory.push import push
from lockstep.storage.memory.queues import put_right
from lockstep.storage.memory.state import DeadEntry, Partition, State


class DeadQueues:
    """Pushes dead letters to the dead queues, and notifies the listener of pushes that the store makes on its own."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.hear: Callable[[str | None, Arrival], None] | None = None

    @contextmanager
    def forwarding(self) -> Iterator[datetime]:
        """For calls that may make dead letters: these are pushed to the dead queues at the end."""
        now = self._state.now()
        yield now
        self.tell(_forward(self._state, now))

    def tell(self, batches: Sequence[Batch]) -> None:
        """Notify the listener of pushes without a producer; otherwise the producer does this."""
        if self.hear is not None:
            for queue, arrival in arrivals_of(batches).items():
                self.hear(queue, arrival)


def _forward(state: State, now: datetime) -> Sequence[Batch]:
    """Push the dead letters of this call to the dead queues, and return the push. Cannot fail: they have no
    max_size."""
    dying, state.dying = state.dying, []
    entries = [state.dead_letters[one] for one in dying if one in state.dead_letters]
    batches = [_copy(entry) for entry in entries]
    if batches:
        pushed = push(state, batches, now, overtake=True, bounded=False)
        for entry, placement in zip(entries, pushed.placements, strict=True):
            copy = state.partitions[placement.partition_id], placement.first_seq
            state.dead_letters[entry.id] = replace(entry, copy=copy)
    return batches


def _copy(entry: DeadEntry) -> Batch:
    dead_queue = entry.partition.queue.options.dead_queue
    assert dead_queue is not None
    message = entry.partition.message(entry.seq)
    return dead_copy(message, dead_queue, group=entry.group, attempts=entry.attempts, error=entry.error)


def send_back(state: State, queue: str, limit: int, now: datetime) -> Sequence[Batch]:
    """Push messages of a dead queue back to their origins; returns them."""
    chosen = list(islice(_copies(state, queue, now), limit))
    batches = [sent_back(message, origin) for _, message, origin in chosen]
    push(state, batches, now, overtake=True)
    for partition, message, origin in chosen:
        _remove(state, partition, message.seq, now)
        _remove_dead_letters(state, origin, (partition, message.seq))
    return batches


def copy_leased(entry: DeadEntry, now: datetime) -> bool:
    """Whether the copy of a dead letter is under a live lease."""
    return entry.copy is not None and _is_under_lease(*entry.copy, now)


def is_copy_done(state: State, entry: DeadEntry) -> bool:
    """Whether queue mode has completed the copy of a dead letter. What died there is not done."""
    if entry.copy is None or entry.copy_done:
        return entry.copy_done
    partition, seq = entry.copy
    queue_mode = partition.queue.groups.get(QUEUE_MODE)
    if queue_mode is None or partition.log.find(seq) is None or seq > queue_mode.seen_at(partition, seq).acked:
        return False
    return all(state.dead_letters[one].group != QUEUE_MODE for one in partition.dead.get(seq, ()))


def note_done_copies(state: State, partition: Partition, first: int, last: int) -> None:
    """Record which copies queue mode has completed, before they are removed."""
    for entry in list(state.dead_letters.values()):
        if entry.copy is not None and entry.copy[0] is partition and first <= entry.copy[1] <= last:
            state.dead_letters[entry.id] = replace(entry, copy_done=is_copy_done(state, entry))


def remove_copy(state: State, entry: DeadEntry, now: datetime) -> None:
    """Take the copy of a dead letter out of the dead queue, unless it is gone, or queue mode has done it."""
    if entry.copy is None:
        return
    partition, seq = entry.copy
    if partition.log.find(seq) is not None and _is_takeable(partition, seq, now):
        _remove(state, partition, seq, now)


def _remove(state: State, partition: Partition, seq: int, now: datetime) -> None:
    state.remove_messages(partition, kept=[(1, seq - 1), (seq + 1, partition.log.last_seq)])
    put_right(state, partition, "unleased", now)


def _copies(state: State, queue: str, now: datetime) -> Iterator[tuple[Partition, Message, Origin]]:
    """Messages that may go back to an existing queue, with their origins, by partition id and seq."""
    for partition in state.queue(queue).partitions.values():
        for run in partition.log.runs:
            for message in run.messages():
                origin = origin_of(message)
                known = origin is not None and origin.queue in state.queues
                if origin is not None and known and _is_takeable(partition, message.seq, now):
                    yield partition, message, origin


def _is_takeable(partition: Partition, seq: int, now: datetime) -> bool:
    """Not done by queue mode, and under no live lease."""
    queue_mode = partition.queue.groups.get(QUEUE_MODE)
    done = queue_mode is not None and seq <= queue_mode.seen_at(partition, seq).acked
    return not done and not _is_under_lease(partition, seq, now)


def _is_under_lease(partition: Partition, seq: int, now: datetime) -> bool:
    cursors = (group.seen_at(partition, seq) for group in partition.queue.groups.values())
    return any(cursor.leased(now) and cursor.acked < seq <= (cursor.lease_to or 0) for cursor in cursors)


def _remove_dead_letters(state: State, origin: Origin, copy: tuple[Partition, int]) -> None:
    """Those of a message that went back; not one that has another copy."""
    partition = state.queues[origin.queue].partitions.get(origin.partition)
    if partition is None:
        return
    for dead_letter_id in list(partition.dead.get(origin.seq, ())):
        entry = state.dead_letters[dead_letter_id]
        if entry.group == origin.group and entry.copy in (None, copy):
            state.remove_dead_letter(dead_letter_id)
