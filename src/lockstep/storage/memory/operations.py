"""For operators: leases, utilisation, and whether the store's own data is right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import msgspec

from lockstep.core.records import LeaseInfo, Problem, ProblemKind, Utilisation
from lockstep.core.rules import STOPPED, Cursor
from lockstep.core.shared import Range, due_at
from lockstep.storage.memory.state import Group, Partition, State


def leases(
    state: State, *, queue: str | None, expiring_within: timedelta | None, limit: int, now: datetime
) -> list[LeaseInfo]:
    found = [
        _lease_info(group, partition, cursor)
        for one in state.chosen(queue)
        for partition in one.partitions.values()
        for group, cursor in state.cursors(partition)
        if cursor.leased(now)
    ]
    found += [
        _range_info(group, partition, one)
        for chosen in state.chosen(queue)
        for partition in chosen.partitions.values()
        for group, _ in state.cursors(partition)
        for one in group.ranges.get(partition.id, ())
        if one.leased(now)
    ]
    if expiring_within is not None:
        found = [lease for lease in found if lease.expires_at <= now + expiring_within]
    return sorted(found, key=lambda lease: (lease.expires_at, lease.partition_id, lease.group, lease.first_seq))[:limit]


def _lease_info(group: Group, partition: Partition, cursor: Cursor) -> LeaseInfo:
    assert cursor.lease_id is not None
    assert cursor.lease_to is not None
    assert cursor.leased_at is not None
    assert cursor.due_at is not None
    return LeaseInfo(
        lease_id=cursor.lease_id,
        queue=group.queue.name,
        partition=partition.name,
        partition_id=partition.id,
        group=group.name,
        first_seq=cursor.acked + 1,
        last_seq=cursor.lease_to,
        attempt=cursor.attempts + 1,
        leased_at=cursor.leased_at,
        expires_at=cursor.due_at,
    )


def _range_info(group: Group, partition: Partition, one: Range) -> LeaseInfo:
    assert one.lease_id is not None
    assert one.leased_at is not None
    return LeaseInfo(
        lease_id=one.lease_id,
        queue=group.queue.name,
        partition=partition.name,
        partition_id=partition.id,
        group=group.name,
        first_seq=one.first,
        last_seq=one.last,
        attempt=one.attempts + 1,
        leased_at=one.leased_at,
        expires_at=one.due_at,
    )


def utilisation(state: State, *, queue: str | None, now: datetime) -> list[Utilisation]:
    return [_utilisation(one.groups[name], now) for one in state.chosen(queue) for name in sorted(one.groups)]


def _utilisation(group: Group, now: datetime) -> Utilisation:
    cursors = [_busy_as(group, id_, cursor, now) for id_, cursor in group.cursors.items()]
    idle = [one for one in cursors if one.due_at is not None and not one.leased(now)]
    stopped = sum(1 for one in idle if one.due_at == STOPPED)
    ready = sum(1 for one in idle if one.due(now))
    return Utilisation(
        queue=group.queue.name,
        group=group.name,
        partitions=len(cursors),
        partitions_leased=sum(1 for one in cursors if one.leased(now)),
        partitions_ready=ready,
        partitions_waiting=len(idle) - ready - stopped,
        partitions_stopped=stopped,
    )


def _busy_as(group: Group, partition_id: int, cursor: Cursor, now: datetime) -> Cursor:
    """The cursor; of a shared group one that is ready if anything is, else leased if anything is."""
    ranges = group.ranges.get(partition_id, [])
    due = due_at(cursor, ranges)
    if not ranges or due is None or due <= now:
        return replace(cursor, due_at=due)
    held = [one for one in ranges if one.leased(now)]
    return Cursor(lease_id=held[0].lease_id, due_at=held[0].due_at) if held else Cursor(due_at=due)


def verify(state: State, *, queue: str | None) -> list[Problem]:
    return verify_partitions(state, (one for found in state.chosen(queue) for one in found.partitions.values()))


def verify_partitions(state: State, partitions: Iterable[Partition]) -> list[Problem]:
    return [problem for partition in partitions for problem in _problems(state, partition)]


def repair(state: State, *, queue: str | None, now: datetime) -> list[Problem]:
    """Compute anew when cursors are due, where that is wrong."""
    problems = verify(state, queue=queue)
    for partition_id in {problem.partition_id for problem in problems if problem.repairable}:
        partition = state.partitions[partition_id or 0]
        for group, cursor in list(state.cursors(partition)):
            if _due_at_is_wrong(partition, cursor):
                state.put_released(group, partition, replace(cursor, due_at=None), not_before=now)
    return [msgspec.structs.replace(problem, repaired=problem.repairable) for problem in problems]


def _problems(state: State, partition: Partition) -> Iterator[Problem]:
    for kind, text in _texts(state, partition):
        yield Problem(
            kind=kind,
            text=text,
            repairable=kind == "due_at_wrong",
            queue=partition.queue.name,
            partition_id=partition.id,
        )


def _texts(state: State, partition: Partition) -> Iterator[tuple[ProblemKind, str]]:
    log = partition.log
    if any(left.last_seq >= right.first_seq for left, right in pairwise(log.runs)):
        yield "seq_gap", "runs overlap"
    if log.runs and log.runs[-1].last_seq > log.last_seq:
        yield "seq_gap", f"a message is stored after the last seq {log.last_seq}"
    for group in partition.queue.groups.values():
        if partition.id not in group.cursors:
            yield "cursor_missing", f"group {group.name!r} has no cursor"
        else:
            yield from _cursor_texts(partition, group.name, group.cursors[partition.id])
            yield from _range_texts(group, group.cursors[partition.id], group.ranges.get(partition.id, []))
    for transaction_id, seq in partition.dedup.items():
        if log.find(seq) is None:
            yield "dedup_dangling", f"transaction id {transaction_id!r} points at {seq}, which is not stored"
    for trace_id, places in state.traces.items():
        if any(partition_id == partition.id and log.find(seq) is None for partition_id, seq in places):
            yield "trace_dangling", f"trace {trace_id} points at a message that is not stored"
    for seq in partition.events:
        if log.find(seq) is None:
            yield "trace_dangling", f"a trace event points at {seq}, which is not stored"
    for seq in partition.dead:
        if log.find(seq) is None:
            yield "dead_letter_dangling", f"a dead letter points at {seq}, which is not stored"


def _cursor_texts(partition: Partition, group: str, cursor: Cursor) -> Iterator[tuple[ProblemKind, str]]:
    last_seq = partition.log.last_seq
    if not 0 <= cursor.acked <= last_seq:
        yield "cursor_out_of_range", f"group {group!r} is at {cursor.acked} of {last_seq}"
    if cursor.lease_id is not None:
        if cursor.due_at is None or not cursor.acked <= (cursor.lease_to or 0) <= last_seq:
            yield "lease_invalid", f"group {group!r} at {cursor.acked} has a lease up to {cursor.lease_to}"
    elif _due_at_is_wrong(partition, cursor):
        yield "due_at_wrong", f"group {group!r} at {cursor.acked} of {last_seq} is due {cursor.due_at}"


def _range_texts(group: Group, cursor: Cursor, ranges: list[Range]) -> Iterator[tuple[ProblemKind, str]]:
    if ranges and group.mode == "ordered":
        yield "delivery_wrong", f"group {group.name!r} is ordered and has {len(ranges)} ranges in flight"
    if any(one.first > one.last or one.last > cursor.acked for one in ranges):
        yield "delivery_wrong", f"group {group.name!r} has handed out up to {cursor.acked}, but more is in flight"
    if any(left.last >= right.first for left, right in pairwise(ranges)):
        yield "delivery_wrong", f"group {group.name!r} has the same messages in flight twice"


def _due_at_is_wrong(partition: Partition, cursor: Cursor) -> bool:
    """A cursor without a lease is drained exactly when nothing is ahead."""
    if cursor.lease_id is not None:
        return False
    return (cursor.due_at is None) != (partition.log.first_after(cursor.acked) is None)
