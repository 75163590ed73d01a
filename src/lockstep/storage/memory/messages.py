"""Stored messages for operators: listing, and removing, retrying or burying single messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from heapq import merge
from uuid import UUID

from lockstep.core import refusals
from lockstep.core.ids import message_id
from lockstep.core.messages import Message, Receipt, Run, redriven
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import (
    MessageFilter,
    MessagePage,
    MessageView,
    newest_cursor,
    page_cursor,
    parse_newest_cursor,
    parse_page_cursor,
)
from lockstep.core.rules import Death, bury, message_status, message_view
from lockstep.core.shared import give_up
from lockstep.storage.memory.dead_queue import DeadQueues, copy_leased, remove_copy
from lockstep.storage.memory.push import push
from lockstep.storage.memory.queues import put_right
from lockstep.storage.memory.state import Partition, Queue, State

_PageCursor = tuple[int, int]
"""Partition id and seq of the last message of a page."""


class MemoryMessages:
    """Stored messages for operators."""

    def __init__(self, state: State, dead_queues: DeadQueues, looked_into_max: int) -> None:
        self._state = state
        self._dead_queues = dead_queues
        self._looked_into_max = looked_into_max

    async def messages(
        self, where: MessageFilter, *, newest_first: bool = False, cursor: str | None = None, limit: int = 100
    ) -> MessagePage:
        state, now = self._state, self._state.now()
        queues = [queue for queue in state.chosen(where.queue) if _has_labels(queue, where)]
        partitions = [one for queue in queues for one in queue.chosen(where.partition)]
        named: Callable[[int, int], str] = newest_cursor if newest_first else page_cursor
        if newest_first:
            places = _newest_places(partitions, where, cursor)
        else:
            places = _places(partitions, where, parse_page_cursor(cursor))
        items: list[MessageView] = []
        looked, last = 0, (0, 0)
        for place, partition, message in places:
            if looked == self._looked_into_max or len(items) == limit:
                return MessagePage(items=items, next_cursor=named(*last), looked_into=looked)
            looked, last = looked + 1, place
            view = None if message is None else _view(state, partition, message, now)
            if view is not None and where.status in (None, view.status):
                items.append(view)
        return MessagePage(items=items, next_cursor=None, looked_into=looked)

    async def message(self, identity: str, *, partition_id: int | None = None) -> MessageView:
        state, now = self._state, self._state.now()
        if partition_id is None:
            found = ((one, one.log.find_id(identity)) for one in state.partitions.values())
        else:
            candidates = [state.partitions[partition_id]] if partition_id in state.partitions else []
            found = ((one, one.resolve(identity)) for one in candidates)
        for partition, seq in found:
            if seq is not None:
                return _view(state, partition, partition.message(seq), now)
        raise refusals.no_message(identity, partition_id)

    async def trace(self, trace_id: str, *, limit: int = 1000) -> list[Message]:
        state = self._state
        places = state.traces.get(trace_id, ())
        found = [state.partitions[partition_id].message(seq) for partition_id, seq in places]
        return sorted(found, key=lambda one: (one.created_at, one.id))[:limit]

    async def remove_message(self, partition_id: int, transaction_id: str) -> None:
        state, now = self._state, self._state.now()
        partition, seq = _find(state, partition_id, transaction_id)
        for group, _ in state.cursors(partition):
            cursor = group.seen_at(partition, seq)
            if cursor.leased(now) and cursor.acked < seq <= (cursor.lease_to or 0):
                raise refusals.message_conflict("leased", transaction_id, partition_id)
        state.remove_messages(partition, kept=[(1, seq - 1), (seq + 1, partition.log.last_seq)])
        put_right(state, partition, "unleased", now)

    async def retry_message(self, partition_id: int, transaction_id: str) -> Receipt:
        state, now = self._state, self._state.now()
        partition, seq = _find(state, partition_id, transaction_id)
        cursors = [group.seen_at(partition, seq) for group, _ in state.cursors(partition)]
        if message_status(seq, cursors, dead=seq in partition.dead, now=now) not in ("completed", "dead_letter"):
            raise refusals.message_conflict("pending", transaction_id, partition_id)
        entries = [state.dead_letters[one] for one in partition.dead.get(seq, ())]
        if any(copy_leased(entry, now) for entry in entries):
            raise refusals.message_conflict("copy_leased", transaction_id, partition_id)
        pushed = push(state, [redriven(partition.message(seq))], now, overtake=True)
        for entry in entries:
            remove_copy(state, entry, now)
            state.remove_dead_letter(entry.id)
        return pushed[0]

    async def bury_message(
        self, partition_id: int, transaction_id: str, *, group: str = QUEUE_MODE, error: str | None = None
    ) -> int:
        state = self._state
        with self._dead_queues.forwarding() as now:
            partition, seq = _find(state, partition_id, transaction_id)
            found = partition.queue.groups.get(group)
            if found is None:
                raise refusals.no_group_on(partition_id, group)
            cursor = found.seen_at(partition, seq)
            if seq <= cursor.acked:
                raise refusals.message_conflict("done", transaction_id, partition_id)
            if cursor.leased(now):
                raise refusals.message_conflict("leased", transaction_id, partition_id)
            if seq <= found.cursors[partition.id].acked:
                kept, attempts = give_up(found.ranges[partition.id], seq)
                state.put_ranges(found, partition, kept)
                death = Death(seq, attempts, error, recorded=True)
            else:
                cursor = found.cursors[partition.id]
                if seq != partition.log.first_after(cursor.acked):
                    raise refusals.message_conflict("behind", transaction_id, partition_id)
                buried, death = bury(cursor, seq, error, now)
                state.put_released(found, partition, buried, not_before=now)
            dead_letter_id = state.add_dead_letter(found, partition, death, now)
            assert dead_letter_id is not None
            return dead_letter_id


_Place = tuple[_PageCursor, Partition, Message | None]
"""What a list looks at: where it is, and the message; None: one that is not of the period, or none."""


def _places(partitions: Iterable[Partition], where: MessageFilter, after: _PageCursor) -> Iterator[_Place]:
    """By partition and seq. Messages outside the period count as one place for each run."""
    for partition in sorted(partitions, key=lambda one: one.id):
        if partition.id < after[0]:
            continue
        if not partition.log.runs:
            yield (partition.id, partition.log.last_seq), partition, None
        first = after[1] if partition.id == after[0] else 0
        for run in partition.log.read(first, len(partition.log)):
            if _is_of_period(run, where):
                for message in run.messages():
                    yield (partition.id, message.seq), partition, message
            else:
                yield (partition.id, run.last_seq), partition, None


def _newest_places(partitions: Iterable[Partition], where: MessageFilter, cursor: str | None) -> Iterator[_Place]:
    """The last stored first: ids rise from one segment to the next, and within it."""
    before = _ID_MAX if cursor is None else parse_newest_cursor(cursor)
    return merge(*(_backwards(one, where, before) for one in partitions), key=lambda place: place[0], reverse=True)


def _backwards(partition: Partition, where: MessageFilter, before: tuple[int, int]) -> Iterator[_Place]:
    for run in partition.log.backwards():
        if _halves(message_id(run.segment, run.ordinal)) >= before:
            continue
        if not _is_of_period(run, where):
            yield _halves(message_id(run.segment, run.ordinal)), partition, None
            continue
        for offset in reversed(range(len(run))):
            place = _halves(message_id(run.segment, run.ordinal + offset))
            if place < before:
                yield place, partition, run.message(offset)


def _is_of_period(run: Run, where: MessageFilter) -> bool:
    return (where.from_at is None or run.created_at >= where.from_at) and (
        where.to_at is None or run.created_at < where.to_at
    )


_ID_MAX = (2**64, 0)


def _halves(identity: str) -> tuple[int, int]:
    """The id of a message as two numbers that a cursor can hold."""
    number = UUID(identity).int
    return number >> 64, number & (2**62 - 1)


def _has_labels(queue: Queue, where: MessageFilter) -> bool:
    return where.namespace in (None, queue.namespace) and where.task in (None, queue.task)


def _view(state: State, partition: Partition, message: Message, now: datetime) -> MessageView:
    cursors = [(group.name, group.seen_at(partition, message.seq)) for group, _ in state.cursors(partition)]
    return message_view(message, cursors, dead=message.seq in partition.dead, now=now)


def _find(state: State, partition_id: int, transaction_id: str) -> tuple[Partition, int]:
    partition = state.partitions.get(partition_id)
    seq = None if partition is None else partition.resolve(transaction_id)
    if partition is None or seq is None:
        raise refusals.no_message(transaction_id, partition_id)
    return partition, seq
