"""Maintenance: pruning, duties, samples, and the history of it all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import msgspec

from lockstep.core.maintenance import (
    START,
    DutyClaim,
    DutyInfo,
    Place,
    Pruned,
    PruneKind,
    Removal,
    RemovalKind,
    Sample,
    Verified,
    prunable,
    prune_before,
)
from lockstep.core.messages import Run
from lockstep.core.names import DEFAULT_PARTITION, QUEUE_MODE
from lockstep.core.rules import Cursor
from lockstep.storage.memory.dead_queue import note_done_copies
from lockstep.storage.memory.operations import verify_partitions
from lockstep.storage.memory.pop import expire_due
from lockstep.storage.memory.queues import put_right
from lockstep.storage.memory.shared import expire_in_flight
from lockstep.storage.memory.state import Group, Partition, Queue, State

_CLOCK_SET_BACK = timedelta(minutes=1)
"""A duty that began further in the future than this was claimed before the clock was set back."""


@dataclass(slots=True)
class _Sums:
    """The seqs that a queue and its groups were at when the last sample was taken."""

    at: datetime
    seqs: int
    acked: dict[str, int]


@dataclass(slots=True)
class Books:
    """What the duties keep beside the messages."""

    duties: dict[str, DutyInfo] = field(default_factory=dict)
    removals: dict[tuple[datetime, str, RemovalKind], Removal] = field(default_factory=dict)
    samples: dict[tuple[datetime, str], Sample] = field(default_factory=dict)
    sums: dict[int, _Sums] = field(default_factory=dict)
    """By queue id."""
    empty: dict[int, tuple[int, datetime]] = field(default_factory=dict)
    """Partition id to the last seq with which it was found empty, and since when."""

    def note_removal(self, queue: Queue, kind: RemovalKind, *, messages: int, partitions: int, now: datetime) -> None:
        at = now.replace(second=0, microsecond=0)
        before = self.removals.get((at, queue.name, kind))
        self.removals[at, queue.name, kind] = Removal(
            at=at,
            queue=queue.name,
            kind=kind,
            messages=messages + (before.messages if before else 0),
            partitions=partitions + (before.partitions if before else 0),
        )


# --- Pruning messages -------------------------------------------------------------------------------------

_Range = tuple[Partition, int, int]


def prune(state: State, books: Books, kind: PruneKind, *, after: Place | None, limit: int, now: datetime) -> Pruned:
    place = after or START
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
    """What may go, oldest segments first, until it is `limit` messages; and the last segment that was looked at."""
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
        # Oldest first: nothing goes before what is older.
        if partition.log.first_after(min(cursors, default=0) if kind == "eviction" else 0) != min(going)[0]:
            continue
        for first, last in going:
            note_done_copies(state, partition, first, last)
            kept = ((0, first - 1), (last + 1, partition.log.last_seq))
            removed += state.remove_messages(partition, kept=[one for one in kept if one[0] <= one[1]])
        if kind != "completed_retention":
            put_right(state, partition, "unleased", now)
    return removed


# --- Pruning partitions -----------------------------------------------------------------------------------


def prune_partitions(
    state: State, books: Books, idle_seconds: float, *, after: Place | None, limit: int, now: datetime
) -> Pruned:
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


# --- Duties -----------------------------------------------------------------------------------------------


def claim_duty(
    books: Books, name: str, *, interval_seconds: float, hold_seconds: float, by: str, now: datetime
) -> DutyClaim:
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


def finish_duty(
    books: Books, name: str, *, by: str, effect: dict[str, Any] | None, error: str | None, more: bool, now: datetime
) -> bool:
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


# --- Samples and history ----------------------------------------------------------------------------------


def sample(state: State, books: Books, now: datetime) -> int:
    return sum(_sample(books, queue, state, now) for queue in state.chosen(None))


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
    books.sums[queue.id] = _Sums(now, seqs, acked)
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


def samples(
    books: Books,
    *,
    queue: str | None,
    from_at: datetime | None,
    to_at: datetime | None,
    after: Sample | None,
    limit: int,
) -> list[Sample]:
    rows = (
        row
        for key, row in sorted(books.samples.items(), key=lambda item: item[0])
        if _matches(row, queue, from_at, to_at) and (after is None or key > (after.at, after.queue))
    )
    return list(islice(rows, limit))


def removals(
    books: Books,
    *,
    queue: str | None,
    from_at: datetime | None,
    to_at: datetime | None,
    after: Removal | None,
    limit: int,
) -> list[Removal]:
    rows = (
        row
        for key, row in sorted(books.removals.items(), key=lambda item: item[0])
        if _matches(row, queue, from_at, to_at) and (after is None or key > (after.at, after.queue, after.kind))
    )
    return list(islice(rows, limit))


def _matches(row: Sample | Removal, queue: str | None, from_at: datetime | None, to_at: datetime | None) -> bool:
    return queue in (None, row.queue) and (from_at is None or row.at >= from_at) and (to_at is None or row.at < to_at)


def prune_history(state: State, books: Books, seconds: float, *, limit: int, now: datetime) -> int:
    before = now - timedelta(seconds=seconds)
    old_samples = [key for key in sorted(books.samples) if key[0] < before][:limit]
    old_removals = [key for key in sorted(books.removals) if key[0] < before][:limit]
    for sample_key in old_samples:
        del books.samples[sample_key]
    for removal_key in old_removals:
        del books.removals[removal_key]
    ids = {queue.id for queue in state.queues.values()}
    books.sums = {queue_id: sums for queue_id, sums in books.sums.items() if queue_id in ids}
    books.empty = {id_: since for id_, since in books.empty.items() if id_ in state.partitions}
    return len(old_samples) + len(old_removals)


# --- Consistency ------------------------------------------------------------------------------------------


def verify_slice(state: State, *, after: Place | None, partitions: int) -> Verified:
    place = after or START
    names = [name for name in sorted(state.queues) if name >= place.queue]
    if not names:
        return Verified([], 0)
    queue = state.queues[names[0]]
    last = place.after if queue.name == place.queue else 0
    ids = sorted(one.id for one in queue.partitions.values() if one.id > last)[:partitions]
    problems = verify_partitions(state, [state.partitions[id_] for id_ in ids])
    if len(ids) == partitions:
        return Verified(problems, len(ids), Place(queue.name, ids[-1]))
    return Verified(problems, len(ids), Place(names[1]) if len(names) > 1 else None)
