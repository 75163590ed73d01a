"""Shared groups: pops, and messages in flight."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from lockstep.core.ids import shared_lease
from lockstep.core.messages import DeliveryFields, Run
from lockstep.core.records import Popped, PopRequest
from lockstep.core.rules import EXPIRED, STOPPED, Cursor, Death, is_expired
from lockstep.core.shared import Range, expire, lease, without
from lockstep.storage.memory.expiry import next_runs
from lockstep.storage.memory.state import Group, Partition, State

PutRight = Callable[[State, Group, Partition, datetime], Cursor]
"""How a due cursor is put right before it is claimed."""


Due = Callable[[State, Group, str | None, datetime], Iterable[Partition]]
"""The partitions whose cursors are due, in the order in which they are served."""


def pop(
    state: State, groups: Sequence[Group], request: PopRequest, now: datetime, *, due: Due, put_right: PutRight
) -> Popped:
    """Lease and return due messages for one request: first redeliveries, then new messages."""
    claims = _SharedClaims(state, request, now)
    for group in groups:
        claims.take_again(group)
        claims.take_new(group, due, put_right)
    return claims.popped


class _SharedClaims:
    """The messages of a request so far."""

    def __init__(self, state: State, request: PopRequest, now: datetime) -> None:
        self.popped = Popped(request.group, mode="shared")
        self._state = state
        self._request = request
        self._now = now
        self._messages_left = request.batch
        self._partitions: set[int] = set()

    def take_again(self, group: Group) -> None:
        """Ranges that are due, earliest first; each is corrected before it is leased."""
        while self._messages_left > 0 and (found := self._next_due(group)) is not None:
            one, partition = found
            kept = [other for other in group.ranges[partition.id] if other is not one]
            right = _put_right(self._state, group, partition, one, self._now)
            if right == [one]:
                right = self._take(group, partition, one)
            self._state.put_ranges(group, partition, kept + right)

    def _next_due(self, group: Group) -> tuple[Range, Partition] | None:
        partitions = [part for part in group.queue.chosen(self._request.partition) if self._admits(part)]
        found = [(one, part) for part in partitions for one in group.ranges.get(part.id, ()) if one.due(self._now)]
        return min(found, key=lambda pair: (pair[0].due_at, pair[1].id, pair[0].first), default=None)

    def _take(self, group: Group, partition: Partition, one: Range) -> list[Range]:
        """Deliver as much of a range as fits; returns the ranges in flight after that."""
        runs = [
            replace(run, delivery=DeliveryFields(one.attempts + 1))
            for run in stored_runs(partition, one, self._messages_left)
        ]
        fits = partition.stored(one) <= self._messages_left
        to = one.last if fits else runs[-1].last_seq
        self._deliver(partition, runs)
        if self._request.auto_ack:
            return without(one, range(one.first, to + 1))
        leased, rest = lease(one, lease_id=self._lease_id(), to=to, now=self._now, until=self._until(group))
        return [leased] if rest is None else [leased, rest]

    def take_new(self, group: Group, due: Due, put_right: PutRight) -> None:
        """New messages, after the due cursors."""
        passed: list[int] = []
        if self._messages_left <= 0:
            return
        for partition in due(self._state, group, self._request.partition, self._now):
            if not self._admits(partition):
                passed.append(partition.id)
                continue
            cursor = put_right(self._state, group, partition, self._now)
            if not cursor.due(self._now):
                self._state.put(group, partition, cursor)
                continue
            runs = list(
                next_runs(partition, cursor, group.queue.options, self._messages_left, self._now, DeliveryFields(1))
            )
            self._hand_out(group, partition, cursor, runs)
            if self._messages_left <= 0:
                break
        for partition_id in passed:
            group.agenda.note(partition_id)

    def _hand_out(self, group: Group, partition: Partition, cursor: Cursor, runs: list[Run]) -> None:
        first, last = cursor.acked + 1, runs[-1].last_seq
        moved = replace(cursor, acked=last, consumed_at=self._now)
        self._state.put_released(group, partition, moved, not_before=self._now)
        self._deliver(partition, runs)
        if not self._request.auto_ack:
            new = Range(first, last, self._until(group), self._lease_id(), self._now)
            self._state.put_ranges(group, partition, [*group.ranges.get(partition.id, ()), new])

    def _admits(self, partition: Partition) -> bool:
        return partition.id in self._partitions or len(self._partitions) < self._request.partitions

    def _deliver(self, partition: Partition, runs: Iterable[Run]) -> None:
        self._partitions.add(partition.id)
        for run in runs:
            self.popped.runs.append(run)
            self._messages_left -= len(run)

    def _lease_id(self) -> str:
        self.popped.lease_id = self.popped.lease_id or str(shared_lease(time.time_ns()))
        return self.popped.lease_id

    def _until(self, group: Group) -> datetime:
        seconds = self._request.lease_seconds
        until = self._now + timedelta(seconds=group.queue.options.lease_seconds if seconds is None else seconds)
        expires_at = self.popped.expires_at
        self.popped.expires_at = until if expires_at is None else min(expires_at, until)
        return until


def _put_right(state: State, group: Group, partition: Partition, one: Range, now: datetime) -> list[Range]:
    """A due range after pending corrections: removed messages, an expired lease, messages that are too old."""
    options = group.queue.options
    if not partition.stored(one):
        return []
    if one.lease_id is not None:
        charged, deaths = expire(one, stored_seqs(partition, one), options)
        _bury(state, group, partition, deaths, now)
        if charged is None or charged.due_at == STOPPED:
            return [] if charged is None else [charged]
        one = charged
    if options.max_wait is not None:
        for run in stored_runs(partition, one):
            if run.created_at >= now - options.max_wait:
                break
            one = replace(one, first=run.last_seq + 1)
    pieces = _without_expired(state, group, partition, one, now)
    return [piece for piece in pieces if piece.first <= piece.last and partition.stored(piece)]


def expire_in_flight(state: State, group: Group, partition: Partition, now: datetime) -> None:
    """Pass what expired in ranges that are neither stopped nor under a live lease; in those that are due, as a pop
    would."""
    kept: list[Range] = []
    for one in group.ranges.get(partition.id, ()):
        if one.due_at == STOPPED or one.leased(now) or not _expired_seqs(group, partition, one, now):
            kept.append(one)
        elif one.due(now):
            kept += _put_right(state, group, partition, one, now)
        else:
            pieces = _without_expired(state, group, partition, one, now)
            kept += [piece for piece in pieces if partition.stored(piece)]
    state.put_ranges(group, partition, kept)


def _without_expired(state: State, group: Group, partition: Partition, one: Range, now: datetime) -> list[Range]:
    """The rest of a range without expired messages, whose dead letters are recorded."""
    expired = _expired_seqs(group, partition, one, now)
    recorded = group.queue.options.on_expired == "dead"
    _bury(state, group, partition, [Death(seq, one.attempts, EXPIRED, recorded) for seq in expired], now)
    return without(one, expired)


def _expired_seqs(group: Group, partition: Partition, one: Range, now: datetime) -> list[int]:
    options = group.queue.options
    expired: list[int] = []
    for run in stored_runs(partition, one):
        own = run.columns.expires_at or [None] * len(run)
        expired += [seq for seq, at in enumerate(own, run.first_seq) if is_expired(run.created_at, at, options, now)]
    return expired


def _bury(state: State, group: Group, partition: Partition, deaths: Iterable[Death], now: datetime) -> None:
    for death in deaths:
        state.add_dead_letter(group, partition, death, now)


def stored_runs(partition: Partition, one: Range, limit: int | None = None) -> Iterator[Run]:
    """The stored messages of a range; at most `limit`."""
    most = len(one) if limit is None else min(limit, len(one))
    for run in partition.log.read(one.first - 1, most):
        if run.first_seq > one.last:
            return
        keep = one.last - run.first_seq + 1
        yield run if keep >= len(run) else replace(run, columns=run.columns.slice(0, keep))


def stored_seqs(partition: Partition, one: Range) -> list[int]:
    return [seq for run in stored_runs(partition, one) for seq in range(run.first_seq, run.last_seq + 1)]


def pass_removed(state: State, partition: Partition, now: datetime | None) -> None:
    """Drop ranges of which nothing is stored any more, except under a live lease."""
    for group in partition.queue.groups.values():
        ranges = group.ranges.get(partition.id, ())
        kept = [one for one in ranges if (now is not None and one.leased(now)) or partition.stored(one)]
        state.put_ranges(group, partition, kept)
