"""Messages out: pop, has_pending, renew."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from lockstep.core.ids import uuid7
from lockstep.core.messages import Run
from lockstep.core.records import PendingRequest, Popped, PopRequest, Renewal, Renewed
from lockstep.core.rules import STOPPED, Cursor, due_after_release, expire, lease, move
from lockstep.storage.memory.state import Group, Partition, Queue, State


def pop(state: State, request: PopRequest, now: datetime) -> Popped:
    """Lease and return what is due for one request."""
    claims = _Claims(state, request, now)
    groups = [state.group(queue, request.group, request.subscription, now) for queue in _queues(state, request)]
    for group in groups:
        if claims.full():
            break
        for partition in _due(state, group, request.partition, now):
            claims.claim(group, partition)
            if claims.full():
                break
    return claims.popped


def _queues(state: State, request: PopRequest) -> list[Queue]:
    """The queues that a request is about, those first that are served first."""
    if request.queue is not None:
        queue = state.queues.get(request.queue)
        if queue is None or (request.partition is not None and request.partition not in queue.partitions):
            return []
        return [queue]
    matching = [
        queue
        for queue in state.queues.values()
        if request.namespace in (None, queue.namespace) and request.task in (None, queue.task)
    ]
    return sorted(matching, key=lambda queue: (-queue.options.priority, queue.name))


def _due(state: State, group: Group, partition: str | None, now: datetime) -> Iterator[Partition]:
    """Due partitions, earliest first."""
    if partition is None:
        for partition_id in group.agenda.take(now):
            yield state.partitions[partition_id]
    elif group.cursors[group.queue.partition(partition).id].due(now):
        yield group.queue.partition(partition)


class _Claims:
    """What one request has got so far."""

    def __init__(self, state: State, request: PopRequest, now: datetime) -> None:
        self.popped = Popped(request.group)
        self._state = state
        self._request = request
        self._now = now
        self._messages_left = request.batch
        self._partitions_left = request.partitions

    def full(self) -> bool:
        return self._messages_left <= 0 or self._partitions_left <= 0

    def claim(self, group: Group, partition: Partition) -> None:
        """Put a due cursor right, and take what it has ahead if it is due even then."""
        cursor = _put_right(self._state, group, partition, self._now)
        if not cursor.due(self._now):
            self._state.put(group, partition, cursor)
            return
        runs = list(self._read(group.queue, partition, cursor))
        if self._request.auto_ack:
            moved = move(cursor, runs[-1].last_seq, self._now)
            self._state.put_released(group, partition, moved, not_before=self._now)
        else:
            self._lease(group, partition, cursor, to=runs[-1].last_seq)
        self.popped.runs.extend(runs)
        self._messages_left -= sum(map(len, runs))
        self._partitions_left -= 1

    def _read(self, queue: Queue, partition: Partition, cursor: Cursor) -> Iterator[Run]:
        for run in partition.log.read(cursor.acked, self._messages_left):
            if run.created_at + queue.options.delay > self._now:
                return
            yield replace(run, attempt=cursor.attempts + 1)

    def _lease(self, group: Group, partition: Partition, cursor: Cursor, *, to: int) -> None:
        popped = self.popped
        seconds = self._request.lease_seconds
        length = timedelta(seconds=group.queue.options.lease_seconds if seconds is None else seconds)
        until = self._now + length
        popped.lease_id = popped.lease_id or str(uuid7(time.time_ns()))
        popped.expires_at = until if popped.expires_at is None else min(popped.expires_at, until)
        leased = lease(cursor, lease_id=popped.lease_id, to=to, now=self._now, until=until)
        self._state.put(group, partition, leased)


def _put_right(state: State, group: Group, partition: Partition, now: datetime) -> Cursor:
    """The cursor after what happened to it unseen: messages removed, a lease expired, messages too old."""
    options, log = group.queue.options, partition.log
    cursor = group.cursors[partition.id]
    head = log.first_after(cursor.acked)
    cursor = move(cursor, log.last_seq if head is None else head - 1, now)
    if cursor.lease_id is not None:
        cursor, death = expire(cursor, head, options, now)
        if death is not None:
            state.add_dead_letter(group, partition, death, now)
        if cursor.due_at == STOPPED:
            return cursor
    if options.max_wait is not None:
        cursor = _pass_old(partition, cursor, now - options.max_wait, now)
    due_at = due_after_release(log.ahead(cursor.acked), options, not_before=now)
    return replace(cursor, due_at=due_at)


def _pass_old(partition: Partition, cursor: Cursor, oldest_at: datetime, now: datetime) -> Cursor:
    """The cursor past the messages that were created before a time."""
    for run in partition.log.read(cursor.acked, len(partition.log)):
        if run.created_at >= oldest_at:
            break
        cursor = move(cursor, run.last_seq, now)
    return cursor


def has_pending(state: State, request: PendingRequest, now: datetime) -> bool:
    """Whether a pop may find something."""
    queue = state.queues.get(request.queue)
    if queue is None or (request.partition is not None and request.partition not in queue.partitions):
        return False
    group = queue.groups.get(request.group)
    if group is None:
        return True
    if request.partition is None:
        return group.agenda.due(now)
    return group.cursors[queue.partition(request.partition).id].due(now)


def renew(state: State, renewals: Iterable[Renewal], now: datetime) -> list[Renewed]:
    """Move deadlines."""
    return [_renew(state, renewal, now) for renewal in renewals]


def _renew(state: State, renewal: Renewal, now: datetime) -> Renewed:
    deadlines = []
    for group, partition in state.leaseholders(renewal.lease_id):
        cursor = group.cursors[partition.id]
        if not cursor.leased(now) or cursor.due_at is None:
            continue
        seconds = group.queue.options.lease_seconds if renewal.seconds is None else renewal.seconds
        deadlines.append(max(cursor.due_at, now + timedelta(seconds=seconds)))
        state.put(group, partition, replace(cursor, due_at=deadlines[-1]))
    return Renewed(lease_id=renewal.lease_id, partitions=len(deadlines), expires_at=min(deadlines, default=None))
