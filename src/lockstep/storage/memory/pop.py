"""Messages out: pop, due_in, renew."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from lockstep.core.ids import uuid7
from lockstep.core.messages import DeliveryFields
from lockstep.core.records import Awaited, Popped, PopRequest, Renewal, Renewed
from lockstep.core.rules import STOPPED, Cursor, due_after_release, expire, lease, move
from lockstep.errors import GroupModeMismatch
from lockstep.storage.memory import shared
from lockstep.storage.memory.expiry import head_expired, next_runs, pass_expired
from lockstep.storage.memory.state import Group, Partition, Queue, State


def pop(state: State, request: PopRequest, now: datetime) -> Popped:
    """Lease and return due messages for one request."""
    return pop_of(state, request, groups_of(state, request, now), now)


def groups_of(state: State, request: PopRequest, now: datetime) -> list[Group]:
    """The groups that serve a request, in the order in which they are served; new groups are created."""
    queues = _queues(state, request)
    return [state.group(queue, request.group, request.subscription, now, mode=request.mode) for queue in queues]


def pop_of(
    state: State, request: PopRequest, groups: Sequence[Group], now: datetime, claims: OrderedClaims | None = None
) -> Popped:
    """Lease and return due messages of these groups; `claims` is what the request already has."""
    if request.queue is not None and not groups:
        return Popped(request.group, no_queue=True)
    if request.partition is not None and request.partition not in groups[0].queue.partitions:
        return Popped(request.group, mode=groups[0].mode)
    mode = groups[0].mode if groups else "ordered"
    groups = [group for group in groups if group.paused_at is None]
    if not groups:
        return Popped(request.group, mode=mode)
    if any(group.mode == "shared" for group in groups):
        return shared.pop(state, groups, request, now, due=_due, put_right=_put_right)
    claims = claims or OrderedClaims(state, request, now)
    for group in groups:
        if claims.full():
            break
        for partition in _due(state, group, request.partition, now):
            claims.claim(group, partition)
            if claims.full() or request.partition is not None:
                break
    return claims.popped


def check_modes(state: State, requests: Iterable[PopRequest]) -> None:
    """Raises GroupModeMismatch if a request's mode differs from a group's, or if it covers groups of both modes."""
    for request in requests:
        queues = _queues(state, request)
        if len({state.group_mode(queue, request.group, request.mode) for queue in queues}) > 1:
            raise GroupModeMismatch(f"group {request.group!r} is ordered on some of the queues and shared on others")


def _queues(state: State, request: PopRequest | Awaited) -> list[Queue]:
    """The queues of a request, in the order in which they are served."""
    if request.queue is not None:
        return [state.queues[request.queue]] if request.queue in state.queues else []
    matching = [
        queue
        for queue in state.queues.values()
        if request.namespace in (None, queue.namespace) and request.task in (None, queue.task)
    ]
    return sorted(matching, key=lambda queue: (-queue.options.priority, queue.name))


def _due(state: State, group: Group, partition: str | None, now: datetime) -> Iterator[Partition]:
    """Due partitions, earliest first; those of a balanced queue fullest first."""
    if partition is None and not group.queue.options.partitions:
        for partition_id in group.agenda.take(now):
            yield state.partitions[partition_id]
    else:
        yield from _fullest_first(group, group.queue.chosen(partition), now)


def _fullest_first(group: Group, partitions: Iterable[Partition], now: datetime) -> Iterator[Partition]:
    """Each as often as it is still due after something was done with it."""
    left = {one.id: one for one in partitions}
    while due := [one for one in left.values() if group.cursors[one.id].due(now)]:
        chosen = min(due, key=lambda one: (-one.log.count_after(group.cursors[one.id].acked), one.id))
        before = group.cursors[chosen.id]
        yield chosen
        if group.cursors[chosen.id] == before:
            del left[chosen.id]


class OrderedClaims:
    """The messages of a request so far."""

    def __init__(self, state: State, request: PopRequest, now: datetime) -> None:
        self.popped = Popped(request.group)
        self._state = state
        self._request = request
        self._now = now
        self.messages_left = request.batch
        self.partitions_left = request.partitions

    def full(self) -> bool:
        return self.messages_left <= 0 or self.partitions_left <= 0

    def claim(
        self, group: Group, partition: Partition, *, most: int | None = None, since: datetime | None = None
    ) -> None:
        """Correct a due cursor, and take up to N messages after it, if it is still due. `since` is when the continued
        lease began."""
        cursor = _put_right(self._state, group, partition, self._now)
        if not cursor.due(self._now):
            self._state.put(group, partition, cursor)
            return
        delivery, options = DeliveryFields(cursor.attempts + 1), group.queue.options
        most = self.messages_left if most is None else most
        runs = list(next_runs(partition, cursor, options, most, self._now, delivery))
        if self._request.auto_ack:
            moved = move(cursor, runs[-1].last_seq, self._now)
            self._state.put_released(group, partition, moved, not_before=self._now)
        else:
            self._lease(group, partition, cursor, to=runs[-1].last_seq, since=since or self._now)
        self.popped.runs.extend(runs)
        self.messages_left -= sum(map(len, runs))
        self.partitions_left -= 1

    def _lease(self, group: Group, partition: Partition, cursor: Cursor, *, to: int, since: datetime) -> None:
        popped = self.popped
        seconds = self._request.lease_seconds
        length = timedelta(seconds=group.queue.options.lease_seconds if seconds is None else seconds)
        until = self._now + length
        popped.lease_id = popped.lease_id or str(uuid7(time.time_ns()))
        popped.expires_at = until if popped.expires_at is None else min(popped.expires_at, until)
        leased = lease(cursor, lease_id=popped.lease_id, to=to, since=since, until=until)
        self._state.put(group, partition, leased)


def _put_right(state: State, group: Group, partition: Partition, now: datetime) -> Cursor:
    """The cursor after pending corrections: removed messages, an expired lease, messages that are too old."""
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
    cursor = pass_expired(state, group, partition, cursor, now)
    # It keeps its place among those that are due.
    due_at = due_after_release(log.ahead(cursor.acked), options, not_before=group.cursors[partition.id].due_at or now)
    return replace(cursor, due_at=due_at)


def expire_due(state: State, group: Group, partition: Partition, now: datetime) -> None:
    """Pass what expired ahead of a cursor that is neither stopped nor under a live lease, as a pop would."""
    cursor = group.cursors[partition.id]
    if cursor.due_at in (None, STOPPED) or cursor.leased(now) or not head_expired(partition, cursor, group, now):
        return
    if cursor.due(now):
        state.put(group, partition, _put_right(state, group, partition, now))
    else:
        passed = pass_expired(state, group, partition, cursor, now)
        state.put_released(group, partition, passed, not_before=now)


def _pass_old(partition: Partition, cursor: Cursor, oldest_at: datetime, now: datetime) -> Cursor:
    """The cursor past the messages that were created before a time."""
    for run in partition.log.read(cursor.acked, len(partition.log)):
        if run.created_at >= oldest_at:
            break
        cursor = move(cursor, run.last_seq, now)
    return cursor


def due_in(state: State, awaited: Awaited, *, within: float, now: datetime) -> float | None:
    """The number of seconds until a pop may find something."""
    times = [_due_at(queue, awaited, now) for queue in _queues(state, awaited)]
    due_at = min((time for time in times if time is not None), default=None)
    if due_at is None or due_at > now + timedelta(seconds=within):
        return None
    return max((due_at - now).total_seconds(), 0.0)


def _due_at(queue: Queue, awaited: Awaited, now: datetime) -> datetime | None:
    if awaited.partition is not None and awaited.partition not in queue.partitions:
        return None
    group = queue.groups.get(awaited.group)
    if group is None:
        return now
    if group.paused_at is not None:
        return None
    again = [one.due_at for part in queue.chosen(awaited.partition) for one in group.ranges.get(part.id, ())]
    if awaited.partition is None:
        new = group.agenda.next_due()
    else:
        new = group.cursors[queue.partition(awaited.partition).id].due_at
    return min([time for time in [new, *again] if time is not None and time != STOPPED], default=None)


def renew(state: State, renewals: Iterable[Renewal], now: datetime) -> list[Renewed]:
    """Move deadlines."""
    return [_renew(state, renewal, now) for renewal in renewals]


def is_live(state: State, lease_id: str, now: datetime) -> bool:
    """Whether it is the live lease of something."""
    return any(
        (group.cursors[partition.id].leased(now) and group.cursors[partition.id].lease_id == lease_id)
        or any(one.leased(now) and one.lease_id == lease_id for one in group.ranges.get(partition.id, ()))
        for group, partition in state.leaseholders(lease_id)
    )


def _renew(state: State, renewal: Renewal, now: datetime) -> Renewed:
    deadlines = []
    for group, partition in state.leaseholders(renewal.lease_id):
        seconds = group.queue.options.lease_seconds if renewal.seconds is None else renewal.seconds
        until = now + timedelta(seconds=seconds)
        cursor = group.cursors[partition.id]
        ranges = group.ranges.get(partition.id, [])
        held = [one for one in ranges if one.leased(now) and one.lease_id == renewal.lease_id]
        if held:
            kept = [one for one in ranges if one not in held]
            state.put_ranges(group, partition, kept + [replace(one, due_at=max(one.due_at, until)) for one in held])
            deadlines.append(max(held[0].due_at, until))
        elif cursor.leased(now) and cursor.due_at is not None:
            deadlines.append(max(cursor.due_at, until))
            state.put(group, partition, replace(cursor, due_at=deadlines[-1]))
    return Renewed(lease_id=renewal.lease_id, partitions=len(deadlines), expires_at=min(deadlines, default=None))
