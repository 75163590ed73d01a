"""Maintenance: pruning, duties and samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import msgspec

from lockstep.core.maintenance import (
    CLOCK_STEP_MAX,
    START,
    DutyClaim,
    DutyInfo,
    Moved,
    Place,
    Pruned,
    PruneKind,
    Sample,
    prunable,
    prune_before,
)
from lockstep.core.messages import Run
from lockstep.core.names import DEFAULT_PARTITION, QUEUE_MODE
from lockstep.core.rules import Cursor
from lockstep.core.statistics import ServerSample
from lockstep.storage.memory.books import Books, Sums
from lockstep.storage.memory.clock import move_back
from lockstep.storage.memory.dead_queue import DeadQueues, note_done_copies
from lockstep.storage.memory.operations import Bundles
from lockstep.storage.memory.pop import expire_due
from lockstep.storage.memory.queues import put_right
from lockstep.storage.memory.shared import expire_in_flight
from lockstep.storage.memory.state import Group, Partition, Queue, State

_CLOCK_SET_BACK = timedelta(minutes=1)
"""A duty that began further in the future than this was claimed before the clock was set back."""

_Range = tuple[Partition, int, int]


class MemoryMaintenance:
    """The verbs that the maintenance duties use."""

    def __init__(self, state: State, books: Books, dead_queues: DeadQueues, bundles: Bundles) -> None:
        self._state = state
        self._bundles = bundles
        self._books = books
        self._dead_queues = dead_queues

    async def prune(self, kind: PruneKind, *, after: Place | None = None, limit: int) -> Pruned:
        with self._dead_queues.forwarding() as now:
            return self._prune(kind, after or START, limit, now)

    def _prune(self, kind: PruneKind, place: Place, limit: int, now: datetime) -> Pruned:
        state, books = self._state, self._books
        if kind == "expiry":
            return _prune_expired(state, books, place, now)
        for queue in state.chosen(None):
            if queue.name < place.queue:
                continue
            ranges, looked_at = _find(state, queue, kind, place.after if queue.name == place.queue else 0, limit, now)
            if ranges:
                removed = _remove(state, kind, ranges, now)
                if removed:
                    books.note_removal(queue, kind, messages=removed, partitions=0, now=now)
                return Pruned(removed, next=Place(queue.name, looked_at))
        return Pruned()

    async def prune_partitions(self, idle_seconds: float, *, after: Place | None = None, limit: int) -> Pruned:
        state, books, now = self._state, self._books, self._state.now()
        place = after or START
        waiting = (state.partitions[id_] for id_ in sorted(state.partitions) if id_ > place.after)
        found = list(islice((partition for partition in waiting if _is_empty(partition)), limit))
        removed = 0
        for partition in found:
            last_seq, since = books.empty.get(partition.id, (None, now))
            if last_seq != partition.log.last_seq:
                since = now
            books.empty[partition.id] = (partition.log.last_seq, since)
            if since <= now - timedelta(seconds=idle_seconds) and not _is_held(state, partition, now):
                _remove_partition(state, books, partition)
                books.note_removal(partition.queue, "idle_partition", messages=0, partitions=1, now=now)
                removed += 1
        return Pruned(partitions=removed, next=Place("", found[-1].id) if len(found) == limit else None)

    async def prune_queues(self, *, after: Place | None = None) -> Pruned:  # noqa: ARG002
        """Nothing to do: a queue is deleted at once."""
        return Pruned()

    async def prune_groups(self, *, after: Place | None = None) -> Pruned:  # noqa: ARG002
        """Nothing to do: a group is created, moved and deleted at once."""
        return Pruned()

    async def follow_clock(self, *, after: Place | None = None) -> Moved:  # noqa: ARG002
        state, books, now = self._state, self._books, self._state.now()
        seen_at, books.clock_seen_at = books.clock_seen_at, now
        if seen_at is None or seen_at <= now + CLOCK_STEP_MAX:
            return Moved()
        back = seen_at - now
        return Moved(move_back(state, back, now) + self._bundles.move_back(back, now))

    async def prune_history(self, seconds: float, *, limit: int) -> int:
        state, books, now = self._state, self._books, self._state.now()
        before = now - timedelta(seconds=seconds)
        old_samples = [key for key in sorted(books.samples) if key[0] < before][:limit]
        old_removals = [key for key in sorted(books.removals) if key[0] < before][:limit]
        old_servers = [key for key in sorted(books.server_samples) if key[0] < before][:limit]
        for server_key in old_servers:
            del books.server_samples[server_key]
        for sample_key in old_samples:
            del books.samples[sample_key]
        for removal_key in old_removals:
            del books.removals[removal_key]
        ids = {queue.id for queue in state.queues.values()}
        books.sums = {queue_id: sums for queue_id, sums in books.sums.items() if queue_id in ids}
        books.empty = {id_: since for id_, since in books.empty.items() if id_ in state.partitions}
        return len(old_samples) + len(old_removals) + len(old_servers)

    async def record_server(self, sample: ServerSample) -> None:
        self._books.server_samples[self._state.now(), sample.server] = sample

    async def claim_duty(self, name: str, *, interval_seconds: float, hold_seconds: float, by: str) -> DutyClaim:
        books, now = self._books, self._state.now()
        before = books.duties.get(name)
        if before is not None:
            due_at = min(before.next_run_at, before.last_started_at + timedelta(seconds=interval_seconds))
            due_at = max(due_at, before.claimed_until or due_at)
            set_back = before.last_started_at > now + _CLOCK_SET_BACK
            if due_at > now and not set_back:
                return DutyClaim(granted=False, wait_seconds=(due_at - now).total_seconds())
        books.duties[name] = DutyInfo(
            name=name,
            interval_seconds=interval_seconds,
            next_run_at=now + timedelta(seconds=interval_seconds),
            claimed_until=now + timedelta(seconds=hold_seconds),
            claimed_by=by,
            last_started_at=now,
            last_finished_at=before.last_finished_at if before else None,
            last_error=before.last_error if before else None,
            last_effect=before.last_effect if before else None,
            runs=before.runs if before else 0,
            failures=before.failures if before else 0,
        )
        return DutyClaim(granted=True)

    async def finish_duty(
        self,
        name: str,
        *,
        by: str,
        effect: dict[str, Any] | None = None,
        error: str | None = None,
        more: bool = False,
    ) -> bool:
        books, now = self._books, self._state.now()
        duty = books.duties.get(name)
        if duty is None or duty.claimed_by != by or duty.claimed_until is None:
            return False
        books.duties[name] = msgspec.structs.replace(
            duty,
            claimed_until=None,
            next_run_at=now if more else duty.next_run_at,
            last_finished_at=now,
            last_error=error,
            last_effect=duty.last_effect if effect is None else effect,
            runs=duty.runs + 1,
            failures=duty.failures + (error is not None),
        )
        return True

    async def duties(self) -> list[DutyInfo]:
        return [self._books.duties[name] for name in sorted(self._books.duties)]

    async def sample(self, *, seconds_max: float | None = None) -> int:  # noqa: ARG002
        state, books, now = self._state, self._books, self._state.now()
        return sum(_sample(books, queue, state, now) for queue in state.chosen(None))


def _prune_expired(state: State, books: Books, place: Place, now: datetime) -> Pruned:
    """Pass what expired of one queue, ahead of cursors and in flight, except what is under a live lease or stopped."""
    queue = next((one for one in state.chosen(None) if one.name >= place.queue), None)
    if queue is None:
        return Pruned()
    passed = 0
    for partition in queue.partitions.values():
        for group, _ in list(state.cursors(partition)):
            before = group.lag_of(partition)
            expire_in_flight(state, group, partition, now)
            expire_due(state, group, partition, now)
            passed += before - group.lag_of(partition)
    if passed:
        books.note_removal(queue, "expiry", messages=passed, partitions=0, now=now)
    return Pruned(passed, next=Place(queue.name + "\x01"))


def _find(
    state: State, queue: Queue, kind: PruneKind, after: int, limit: int, now: datetime
) -> tuple[list[_Range], int]:
    """The removable messages, oldest segments first, up to `limit`; and the last segment that was examined."""
    ranges: list[_Range] = []
    found = 0
    for segment, runs in _old_segments(queue, kind, after, now):
        after = segment
        for partition, run in runs:
            cursors = [place for group, _ in state.cursors(partition) for place in group.places(partition, now)]
            going = prunable(kind, run.first_seq, run.last_seq, cursors, now)
            if going is not None:
                ranges.append((partition, *going))
                found += going[1] - going[0] + 1
        if found >= limit:
            break
    return ranges, after


def _old_segments(
    queue: Queue, kind: PruneKind, after: int, now: datetime
) -> Iterator[tuple[int, list[tuple[Partition, Run]]]]:
    before = prune_before(queue.options, kind, now)
    segments: dict[int, list[tuple[Partition, Run]]] = defaultdict(list)
    for partition in queue.partitions.values():
        for run in partition.log.runs:
            if before is not None and run.created_at < before and run.segment.int > after:
                segments[run.segment.int].append((partition, run))
    yield from sorted(segments.items())


def _remove(state: State, kind: PruneKind, ranges: list[_Range], now: datetime) -> int:
    removed = 0
    touched = dict.fromkeys(partition for partition, _, _ in ranges)
    for partition in touched:
        going = [(first, last) for one, first, last in ranges if one is partition]
        cursors = (group.done_upto(partition) for group, _ in state.cursors(partition))
        # Oldest first: nothing is removed before older messages.
        if partition.log.first_after(min(cursors, default=0) if kind == "eviction" else 0) != min(going)[0]:
            continue
        for first, last in going:
            note_done_copies(state, partition, first, last)
            kept = ((0, first - 1), (last + 1, partition.log.last_seq))
            removed += state.remove_messages(partition, kept=[one for one in kept if one[0] <= one[1]])
        if kind != "completed_retention":
            put_right(state, partition, "unleased", now)
    return removed


def _is_empty(partition: Partition) -> bool:
    return partition.name != DEFAULT_PARTITION and partition.log.last_seq > 0 and not len(partition.log)


def _is_held(state: State, partition: Partition, now: datetime) -> bool:
    if any(group.is_leased(partition, now) for group, _ in state.cursors(partition)):
        return True
    if partition.id in state.lanes:
        return True
    return any(query.rows.get(partition.id) for query in state.stream_queries.values())


def _remove_partition(state: State, books: Books, partition: Partition) -> None:
    sums = books.sums.get(partition.queue.id)
    if sums is not None:
        sums.seqs -= partition.log.last_seq
    for group in partition.queue.groups.values():
        if sums is not None and group.name in sums.acked:
            sums.acked[group.name] -= group.passed(partition)
        state.put(group, partition, Cursor())
        state.put_ranges(group, partition, [])
        del group.cursors[partition.id]
    del books.empty[partition.id]
    del partition.queue.partitions[partition.name]
    del state.partitions[partition.id]


def _sample(books: Books, queue: Queue, state: State, now: datetime) -> bool:
    before = books.sums.get(queue.id)
    since = queue.created_at if before is None else before.at
    if since >= now:
        return False
    seqs = sum(partition.log.last_seq for partition in queue.partitions.values())
    acked = {name: sum(map(group.passed, queue.partitions.values())) for name, group in queue.groups.items()}
    known = {} if before is None else before.acked
    passed = sum(max(acked[name] - known.get(name, _base(group)), 0) for name, group in queue.groups.items())
    dead = sum(e.partition.queue is queue and since <= e.failed_at < now for e in state.dead_letters.values())
    books.sums[queue.id] = Sums(now, seqs, acked)
    books.samples[now, queue.name] = Sample(
        at=now,
        queue=queue.name,
        seconds=(now - since).total_seconds(),
        pushed=seqs - (0 if before is None else before.seqs),
        completed=max(passed - dead, 0),
        dead=dead,
        pending=queue.pending(),
        lag_seconds=max((now - _oldest_at(queue, now)).total_seconds(), 0),
    )
    return True


def _base(group: Group) -> int:
    """Where a group counts from that was not sampled before: one that reads all began with what was stored first."""
    stored = group.queue.subscriptions.get(group.name)
    places = [(partition, group.passed(partition)) for partition in group.queue.partitions.values()]
    if group.name == QUEUE_MODE or stored is None or stored.subscription.mode == "all":
        return sum(min(partition.log.first_seq - 1, passed) for partition, passed in places)
    return sum(passed for _, passed in places)


def _oldest_at(queue: Queue, now: datetime) -> datetime:
    """When the oldest message was created that a group has before it, or that is stored while there is no group."""
    partitions, groups = queue.partitions.values(), queue.groups.values()
    times = [group.oldest_at(partition) for partition in partitions for group in groups]
    if not groups:
        ahead = [partition.log.ahead(0) for partition in partitions]
        times = [None if one is None else one.next_created_at for one in ahead]
    return min((at for at in times if at is not None), default=now)
