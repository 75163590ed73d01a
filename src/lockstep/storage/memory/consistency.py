"""Whether the store's own data is right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

import msgspec

from lockstep.core.maintenance import START, Place, Verified
from lockstep.core.records import Problem, ProblemKind
from lockstep.core.rules import Cursor
from lockstep.core.shared import Range
from lockstep.storage.memory.state import Group, Partition, State


class MemoryConsistency:
    """Whether the stored data is right."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def verify(self, *, queue: str | None = None) -> list[Problem]:
        return self._verified(one for found in self._state.chosen(queue) for one in found.partitions.values())

    def _verified(self, partitions: Iterable[Partition]) -> list[Problem]:
        return [problem for partition in partitions for problem in _problems(self._state, partition)]

    async def repair(self, *, queue: str | None = None) -> list[Problem]:
        """Recompute wrong due times of cursors."""
        state, now = self._state, self._state.now()
        problems = await self.verify(queue=queue)
        for partition_id in {problem.partition_id for problem in problems if problem.repairable}:
            partition = state.partitions[partition_id or 0]
            for group, cursor in list(state.cursors(partition)):
                if _due_at_is_wrong(partition, cursor):
                    state.put_released(group, partition, replace(cursor, due_at=None), not_before=now)
        return [msgspec.structs.replace(problem, repaired=problem.repairable) for problem in problems]

    async def verify_slice(self, *, after: Place | None = None, partitions: int) -> Verified:
        state = self._state
        place = after or START
        names = [name for name in sorted(state.queues) if name >= place.queue]
        if not names:
            return Verified([], 0)
        queue = state.queues[names[0]]
        last = place.after if queue.name == place.queue else 0
        ids = sorted(one.id for one in queue.partitions.values() if one.id > last)[:partitions]
        problems = self._verified([state.partitions[id_] for id_ in ids])
        if len(ids) == partitions:
            return Verified(problems, len(ids), Place(queue.name, ids[-1]))
        return Verified(problems, len(ids), Place(names[1]) if len(names) > 1 else None)


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
