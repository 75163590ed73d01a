"""Operations: requests that wait in bundles, and their application."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from uuid import UUID

import msgspec

from lockstep.core import refusals
from lockstep.core.applying import Answer, Applied, ApplyLimits, Attempt, Bundle, applied_to
from lockstep.core.operations import (
    ACK_LANE,
    KINDS,
    PRIORITIES,
    Aim,
    NewOperation,
    OperationCounts,
    OperationDepth,
    OperationInfo,
    OperationKind,
    OperationPage,
    OperationStatus,
    Outcome,
    operation_cursor,
    operation_ids,
    parse_operation_cursor,
    split_operation_id,
)
from lockstep.core.policy import QueueOptions
from lockstep.core.rules import due_after_set_back
from lockstep.errors import Conflict, LockstepError
from lockstep.storage.memory.ack import ack
from lockstep.storage.memory.dead_queue import DeadQueues
from lockstep.storage.memory.push import push
from lockstep.storage.memory.state import State

_SLEEP_MAX = timedelta(seconds=10)


class MemoryOperations:
    """Requests that wait to be applied."""

    def __init__(self, state: State, dead_queues: DeadQueues, bundles: Bundles) -> None:
        self._state = state
        self._dead_queues = dead_queues
        self._bundles = bundles

    async def queue_operations(self, operations: Sequence[NewOperation]) -> list[str]:
        state, now = self._state, self._state.now()
        lanes = _lanes(state, operations, now)
        bundle = Bundle(state.new_segment(now), list(operations), [None] * len(operations), lanes=lanes)
        stored = _StoredBundle(next(self._bundles.serials), bundle, operations[0].kind, now, now)
        self._bundles.by_uuid[bundle.uuid] = stored
        _enter(state, stored)
        return operation_ids(bundle.uuid, len(operations))

    async def apply_operations(self, kind: OperationKind, *, by: str, limits: ApplyLimits) -> Applied:
        state = self._state
        with self._dead_queues.forwarding() as now:
            taken = _claim(state, self._bundles, kind, limits, now)
            lanes = {lane for stored in taken for lane in stored.bundle.lanes}
            for stored in taken:
                _leave(state, stored)
            applied = applied_to([one.bundle for one in taken], lambda attempt: _attempt(state, attempt, now), limits)
            for stored in taken:
                stored.worker = by
                if stored.bundle.left:
                    stored.due_at = now + timedelta(seconds=limits.wait_seconds(stored.bundle.retries))
                    stored.bundle.lanes = _lanes(state, stored.bundle.left, now)
                    _enter(state, stored)
                else:
                    stored.completed_at = now
            kept = {lane for stored in taken if stored.pending for lane in stored.bundle.lanes}
            _wake(state, self._bundles, kind, lanes - kept, now)
            return applied

    async def operations(
        self,
        *,
        status: OperationStatus | None = None,
        queue: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> OperationPage:
        after = parse_operation_cursor(cursor)
        found = [
            (operation_cursor(stored.serial, ordinal), info)
            for stored in self._bundles.by_uuid.values()
            for ordinal, info in enumerate(_infos(stored))
            if (stored.serial, ordinal) > after and info.is_among(status, queue)
        ]
        return OperationPage(
            items=[info for _, info in found[:limit]], next_cursor=found[limit - 1][0] if len(found) > limit else None
        )

    async def operation(self, operation_id: str) -> OperationInfo:
        stored, ordinal = self._bundles.find(operation_id)
        earlier = [one for one in self._bundles.pending(stored.kind) if one.serial < stored.serial]
        return _infos(stored, before=sum(len(one.bundle.operations) for one in earlier))[ordinal]

    async def operation_outcomes(self, bundles: Sequence[UUID]) -> dict[UUID, list[Outcome | None]]:
        known = [self._bundles.by_uuid[uuid].bundle for uuid in bundles if uuid in self._bundles.by_uuid]
        return {bundle.uuid: list(bundle.outcomes) for bundle in known}

    async def operation_counts(self) -> OperationCounts:
        failed = sum(stored.bundle.failed for stored in self._bundles.by_uuid.values())
        return OperationCounts(pending=[_depth(kind, self._bundles.pending(kind)) for kind in KINDS], failed=failed)

    async def retry_operation(self, operation_id: str) -> OperationInfo:
        state, now = self._state, self._state.now()
        stored, ordinal = self._bundles.find(operation_id)
        outcome = stored.bundle.outcomes[ordinal]
        if outcome is None or outcome.failure is None:
            raise Conflict(f"operation {operation_id} has not failed")
        if stored.pending:
            _leave(state, stored)
        stored.bundle.outcomes[ordinal] = None
        stored.bundle.retries, stored.due_at, stored.completed_at = 0, now, None
        stored.bundle.lanes = _lanes(state, stored.bundle.left, now)
        _enter(state, stored)
        return await self.operation(operation_id)

    async def prune_operations(self, seconds: float, *, failed_seconds: float, limit: int) -> int:
        now = self._state.now()

        def kept(stored: _StoredBundle) -> timedelta:
            return timedelta(seconds=max(seconds, failed_seconds) if stored.bundle.failed else seconds)

        ended = [
            one for one in self._bundles.by_uuid.values() if one.completed_at and one.completed_at <= now - kept(one)
        ]
        for stored in sorted(ended, key=lambda one: (one.completed_at, one.serial))[:limit]:
            del self._bundles.by_uuid[stored.bundle.uuid]
        return min(len(ended), limit)


@dataclass(slots=True)
class _StoredBundle:
    serial: int
    bundle: Bundle
    kind: OperationKind
    created_at: datetime
    due_at: datetime
    completed_at: datetime | None = None
    worker: str | None = None

    @property
    def pending(self) -> bool:
        return self.completed_at is None

    def sleeps(self, now: datetime) -> bool:
        """Whether it is not due, or tried again: what is behind it need not be looked at."""
        return self.due_at > now or self.bundle.error is not None


@dataclass(slots=True)
class Bundles:
    """All bundles, oldest first; the lanes in which some of them wait are the state's, where pushes look."""

    by_uuid: dict[UUID, _StoredBundle] = field(default_factory=dict)
    serials: count[int] = field(default_factory=lambda: count(1))

    def pending(self, kind: OperationKind) -> list[_StoredBundle]:
        return [one for one in self.by_uuid.values() if one.pending and one.kind == kind]

    def move_back(self, back: timedelta, now: datetime) -> int:
        """Shorten the waits of bundles; returns how many were changed."""
        waiting = [one for one in self.by_uuid.values() if one.pending and one.due_at > now]
        for one in waiting:
            one.due_at = due_after_set_back(one.due_at, back, lease=None, now=now)
        return len(waiting)

    def by_serial(self, kind: OperationKind) -> dict[int, _StoredBundle]:
        """Pending bundles, oldest first."""
        return {one.serial: one for one in self.pending(kind)}

    def find(self, operation_id: str) -> tuple[_StoredBundle, int]:
        uuid, ordinal = split_operation_id(operation_id)
        stored = self.by_uuid.get(uuid)
        if stored is None or ordinal >= len(stored.bundle.operations):
            raise refusals.no_operation(operation_id)
        return stored, ordinal


def _lanes(state: State, new: Sequence[NewOperation], now: datetime) -> frozenset[int]:
    """The partitions of the operations; missing ones are created, as by a push."""
    places = {place for operation in new for place in operation.places()}
    named: dict[str, list[str]] = {}
    for name, partition in places:
        named.setdefault(name, []).append(partition)
    for name, partitions in named.items():
        state.check_partitions(name, partitions)
    for name in sorted({batch.queue for operation in new for batch in operation.batches}):
        if name not in state.queues:
            state.add_queue(name, QueueOptions(), now)
    lanes = {ACK_LANE} if any(operation.acks for operation in new) else set()
    for name, partition in sorted(places):
        queue = state.queues[name]
        lanes.add((queue.partitions.get(partition) or state.add_partition(queue, partition, now)).id)
    return frozenset(lanes)


def _enter(state: State, stored: _StoredBundle) -> None:
    for lane in stored.bundle.lanes:
        state.lanes.setdefault(lane, set()).add(stored.serial)


def _leave(state: State, stored: _StoredBundle) -> None:
    for lane in stored.bundle.lanes:
        state.lanes[lane].discard(stored.serial)
        if not state.lanes[lane]:
            del state.lanes[lane]


def _wake(state: State, bundles: Bundles, kind: OperationKind, lanes: set[int], now: datetime) -> None:
    """Wakes what waits in lanes that the taken bundles leave. A lane whose first bundle does not sleep stays as it is:
    that bundle wakes the others when it leaves."""
    pending = bundles.by_serial(kind)
    waiting = [state.lanes[lane] for lane in lanes if lane in state.lanes]
    woken = {serial for serials in waiting if pending[min(serials)].sleeps(now) for serial in serials}
    for serial in woken:
        stored = pending[serial]
        stored.due_at, stored.bundle.error = min(stored.due_at, now), None


def _claim(
    state: State, bundles: Bundles, kind: OperationKind, limits: ApplyLimits, now: datetime
) -> list[_StoredBundle]:
    """Bundles that may be applied now: before each, in its lanes, is nothing but what is taken, too. One that is tried
    again is the only one of its lanes: what is behind it would most likely fail with it, and sleeps."""
    pending = bundles.by_serial(kind)
    taken: list[_StoredBundle] = []
    followed: set[int] = set()
    messages = size = 0
    for stored in pending.values():
        if stored.due_at > now:
            continue
        messages_with = messages + sum(operation.messages() for operation in stored.bundle.operations)
        size_with = size + sum(operation.bytes() for operation in stored.bundle.operations)
        if taken and (messages_with > limits.messages_max or size_with > limits.bytes_max):
            break
        before = next((serial for serial in _before(state, stored) if serial not in followed), None)
        if before is not None:
            _sleep(stored, pending[before], now)
            continue
        messages, size = messages_with, size_with
        taken.append(stored)
        if stored.bundle.error is None:
            followed.add(stored.serial)
    return taken


def _before(state: State, stored: _StoredBundle) -> Iterator[int]:
    """The serials of the bundles just before this one, by lane."""
    for lane in sorted(stored.bundle.lanes):
        earlier = [serial for serial in state.lanes[lane] if serial < stored.serial]
        if earlier:
            yield max(earlier)


def _sleep(stored: _StoredBundle, before: _StoredBundle, now: datetime) -> None:
    """Postpones a bundle behind a sleeping bundle, for half as long as it has waited, until `_wake` wakes it."""
    if before.sleeps(now):
        stored.due_at = max(before.due_at, now + min((now - stored.created_at) / 2, _SLEEP_MAX))


def _attempt(state: State, attempt: Attempt, now: datetime) -> Answer:
    """One call, which is undone if it fails."""
    try:
        if attempt[0].acks:
            return ack(state, [one for operation in attempt for one in operation.acks], now)
        return push(state, [batch for operation in attempt for batch in operation.batches], now, overtake=True)
    except LockstepError as error:
        return error


def _infos(stored: _StoredBundle, *, before: int | None = None) -> list[OperationInfo]:
    bundle = stored.bundle
    infos = []
    ids = operation_ids(bundle.uuid, len(bundle.operations))
    for ordinal, (operation_id, outcome) in enumerate(zip(ids, bundle.outcomes, strict=True)):
        failure = None if outcome is None else outcome.failure
        ahead = None if before is None else before + bundle.outcomes[:ordinal].count(None)
        infos.append(
            OperationInfo(
                id=operation_id,
                kind=stored.kind,
                status="pending" if outcome is None else outcome.status,
                priority=PRIORITIES[stored.kind],
                created_at=stored.created_at,
                **msgspec.structs.asdict(Aim.of(bundle.operations[ordinal])),
                position=ahead + 1 if outcome is None and ahead is not None else None,
                due_at=stored.due_at if outcome is None else None,
                retries=bundle.retries,
                completed_at=stored.completed_at,
                worker=stored.worker,
                error=bundle.error if outcome is None else None if failure is None else failure.message,
                error_code=None if failure is None else failure.code,
                outcome=outcome,
            )
        )
    return infos


def _depth(kind: OperationKind, waiting: Sequence[_StoredBundle]) -> OperationDepth:
    requests = [operation for stored in waiting for operation in stored.bundle.operations]
    return OperationDepth(
        kind=kind,
        operations=len(requests),
        messages=sum(operation.messages() for operation in requests),
        bytes=sum(operation.bytes() for operation in requests),
        oldest_at=min((stored.created_at for stored in waiting), default=None),
    )
