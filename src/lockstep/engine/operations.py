"""The operation queue at work: requests go in, a processor applies them, and whoever waits is told what became of them.

The processor runs in every server process, and wherever something was queued. It needs no claim of its own: the store
hands an operation to one process at a time, in order. Those who wait are told at once by the processor of their own
process; what another process has applied is found by looking from time to time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from msgspec.structs import replace

from lockstep.config import Config
from lockstep.core.applying import Applied, ApplyLimits, ack_keys
from lockstep.core.messages import Batch, PushResult, QueuedPush
from lockstep.core.operations import (
    KINDS,
    NewOperation,
    OperationCounts,
    OperationKind,
    OperationStats,
    Order,
    Outcome,
    QueueReason,
    split_operation_id,
)
from lockstep.core.records import Ack, AckOutcome
from lockstep.engine.background import Background, ended
from lockstep.engine.batching import Batching
from lockstep.engine.load import Answer, Lateness, Load
from lockstep.errors import StillQueued
from lockstep.storage.base import Store

logger = logging.getLogger("lockstep.engine.operations")

_LOOK_SECONDS = 0.1


@dataclass(slots=True)
class Tell:
    """Who is told what was applied."""

    partitions: Callable[[Mapping[str, set[str]], Mapping[str, int]], None]
    scheduled: Callable[[datetime | None], None]
    released: Callable[[Sequence[AckOutcome]], None]


class Operations:
    """Queues requests, and sees to it that they are applied."""

    def __init__(self, store: Store, config: Config, batching: Batching, load: Load, tell: Tell) -> None:
        self._store = store
        self._batching = batching
        self._load = load
        self._tell = tell
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._wait_seconds_max = config.operation_wait_seconds_max
        self._interval_seconds = config.operation_interval_seconds
        self._stop_seconds_max = config.duty_stop_seconds_max
        self._limits = ApplyLimits(
            messages_max=config.operation_call_messages_max,
            bytes_max=config.operation_call_bytes_max,
            retries_max=config.operation_retries_max,
            retry_seconds_max=config.operation_retry_seconds_max,
            lock_seconds=config.call_lock_seconds,
            timeout_seconds=config.operation_timeout_seconds,
        )
        self._lateness = Lateness(load, store.counts)
        self._awaited: dict[UUID, dict[asyncio.Future[Outcome | None], int]] = {}
        """By bundle: a future for each caller that waits, with the ordinal of its operation."""
        self._looking: asyncio.Task[None] | None = None
        self._processing = Background(
            "operations",
            self._pass,
            interval_seconds=self._interval_seconds,
            stop_seconds_max=self._stop_seconds_max,
            logger=logger,
        )
        self._stopping = False
        self._pending_acks: dict[object, int] = {}
        """How many acks, queued here and not yet applied, speak of a lease, or of a group's partition."""
        self.applied = 0
        self.failed = 0

    def start(self) -> None:
        """Begin to apply; what was begun goes on."""
        self._processing.start()

    def manage_load(self) -> None:
        """Begin to apply, and to decide what is executed, queued and refused."""
        self._load.manage()
        self._lateness.start()
        self.start()

    def stop_waiting(self) -> None:
        """Let those who wait for an operation have their answer soon, whatever it is."""
        asyncio.get_running_loop().call_later(self._stop_seconds_max, self._give_up)

    def _give_up(self) -> None:
        for futures in self._awaited.values():
            for future in futures:
                if not future.done():
                    future.set_result(None)
        self._awaited.clear()

    async def stop(self) -> None:
        """End; a pass that is being done may end itself within a limit. Safe to call twice."""
        self._lateness.stop()
        self._stopping = True
        self._give_up()
        await self._processing.stop()
        looking, self._looking = self._looking, None
        if looking is not None:
            await ended([looking], self._stop_seconds_max)

    def stir(self) -> None:
        """Something may be there to apply."""
        self.start()
        self._processing.stir()

    def stats(self, counts: OperationCounts) -> OperationStats:
        return OperationStats(
            pending=counts.pending,
            failed=counts.failed,
            managed=self._load.managed,
            load=self._load.shown(),
            applied=self.applied,
            applied_failed=self.failed,
            applied_per_second=round(self._load.drain_rate, 3),
        )

    # Requests in

    async def queue_push(self, batches: Sequence[Batch], order: Order | None, reason: QueueReason) -> PushResult:
        """Let a push wait; the receipts name the operation. Raises Overloaded."""
        operation = NewOperation(_dated(batches), order=order)
        queued = await self._queue(operation, reason)
        return PushResult(batches, [], operation=queued)

    async def push_applied(self, pushed: PushResult) -> PushResult:
        """The receipts of a push that was queued, once it is applied. Raises what it failed with, StillQueued."""
        assert pushed.operation is not None
        return (await self._outcome(pushed.operation.operation_id)).pushed(pushed.batches)

    async def ack(self, acks: Sequence[Ack]) -> list[AckOutcome]:
        """Acks while the server is busy, or while earlier ones wait: queued, and their outcomes once they are applied.
        Raises Overloaded, StillQueued."""
        if self._load.ack is Answer.REJECT:
            raise self._load.refusal("ack")
        keys = ack_keys(acks)
        for key in keys:
            self._pending_acks[key] = self._pending_acks.get(key, 0) + 1
        try:
            queued = await self._queue(NewOperation(acks=acks), "system_busy")
            return (await self._outcome(queued.operation_id)).outcomes()
        finally:
            for key in keys:
                self._pending_acks[key] -= 1
                if not self._pending_acks[key]:
                    del self._pending_acks[key]

    def is_behind(self, acks: Sequence[Ack]) -> bool:
        """Whether earlier acks of the same wait, from this process."""
        return bool(self._pending_acks) and not self._pending_acks.keys().isdisjoint(ack_keys(acks))

    async def _queue(self, operation: NewOperation, reason: QueueReason) -> QueuedPush:
        kind = operation.kind
        if not self._load.has_room(kind):
            raise self._load.refusal(kind)
        self._load.note_queued(kind, operation.bytes())
        position = self._load.states[kind].depth
        operation_id = await self._batching.queue(operation)
        self.stir()
        return QueuedPush(
            operation_id=operation_id,
            position=position,
            estimated_wait_seconds=self._load.wait_seconds(position),
            reason=reason,
        )

    # Waiting for the outcome

    async def _outcome(self, operation_id: str) -> Outcome:
        outcome = await self.wait(operation_id, self._wait_seconds_max)
        if outcome is None:
            text = f"the request was accepted as operation {operation_id} and is not applied yet"
            raise StillQueued(text, operation_id=operation_id, maybe_applied=True)
        return outcome

    async def wait(self, operation_id: str, seconds: float) -> Outcome | None:
        """What became of an operation; None if nothing has within the time."""
        bundle, ordinal = split_operation_id(operation_id)
        # Each caller has a future of its own: one that gives up must not end the wait of the others.
        future: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(bundle, {})[future] = ordinal
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="lockstep-operations-look")
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            return None
        finally:
            self._forget(bundle, future)

    def _forget(self, bundle: UUID, future: asyncio.Future[Outcome | None]) -> None:
        futures = self._awaited.get(bundle, {})
        futures.pop(future, None)
        if not futures:
            self._awaited.pop(bundle, None)

    def _settle(self, bundle: UUID, outcomes: Sequence[Outcome | None]) -> None:
        for future, ordinal in list(self._awaited.get(bundle, {}).items()):
            outcome = outcomes[ordinal] if ordinal < len(outcomes) else None
            if outcome is not None and not future.done():
                future.set_result(outcome)

    async def _look(self) -> None:
        """While somebody waits: see what other processes have applied."""
        while self._awaited and not self._stopping:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                found = await self._store.operation_outcomes(list(self._awaited))
            except Exception as error:
                logger.info("look_failed", extra={"action": "look_failed", "error": str(error)})
                continue
            for bundle, outcomes in found.items():
                self._settle(bundle, outcomes)

    # The processor

    async def _pass(self) -> float:
        return 0.0 if await self.run_once() else self._interval_seconds

    async def run_once(self) -> bool:
        """See what waits, and apply what one call of each kind may; says whether anything was."""
        self._load.begin_count()
        counts = await self._store.operation_counts()
        self._load.note_counts(counts)
        progress = False
        for kind in KINDS:
            if counts.depth(kind).operations:
                progress |= await self._apply(kind)
        self._load.draining = progress
        return progress

    async def _apply(self, kind: OperationKind) -> bool:
        began = asyncio.get_running_loop().time()
        applied = await self._store.apply_operations(kind, by=self._name, limits=self._limits)
        if applied.operations:
            self._load.note_applied(applied.operations, asyncio.get_running_loop().time() - began)
        self._tell_applied(applied)
        return applied.operations > 0

    def _tell_applied(self, applied: Applied) -> None:
        self.applied += applied.operations
        self.failed += applied.failed
        for bundle, outcomes in applied.settled:
            self._settle(bundle, outcomes)
        if applied.partitions_by_queue:
            self._tell.partitions(applied.partitions_by_queue, applied.messages_by_queue)
        if applied.first_due_at is not None:
            self._tell.scheduled(applied.first_due_at)
        if applied.acks:
            self._tell.released(applied.acks)
        if applied.failed:
            fields = {"action": "operations_ended_in_failure", "operations": applied.failed}
            logger.warning("operations_ended_in_failure", extra=fields)


def _dated(batches: Sequence[Batch]) -> Sequence[Batch]:
    """The batches with times in place of spans, which count from now and not from when they are applied."""
    if all([batch.schedule is None or batch.schedule.delay_seconds is None for batch in batches]):
        return batches
    return [_dated_one(batch, datetime.now(UTC)) for batch in batches]


def _dated_one(batch: Batch, now: datetime) -> Batch:
    schedule = batch.schedule
    if schedule is None or schedule.delay_seconds is None:
        return batch
    due_at = now + timedelta(seconds=schedule.delay_seconds)
    return Batch(batch.queue, batch.partition, batch.columns, replace(schedule, deliver_at=due_at, delay_seconds=None))
