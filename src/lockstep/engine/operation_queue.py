"""The operation queue: requests go in, a processor applies them, and their callers get the outcomes.

The processor runs in every server process, and wherever something was queued. It needs no claim of its own: the store
hands an operation to one process at a time, in order. Callers get the outcome at once from the processor of their own
process. What another process has applied is found by polling.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
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
from lockstep.engine.arrivals import Arrivals
from lockstep.engine.background import Background, ended
from lockstep.engine.batching import Batching
from lockstep.engine.load import Decision, Lateness
from lockstep.errors import StillQueued
from lockstep.storage.base import Store

logger = logging.getLogger("lockstep.engine.operations")

_LOOK_SECONDS = 0.1


class OperationQueue:
    """Queues requests and applies them."""

    def __init__(self, store: Store, config: Config, batching: Batching, arrivals: Arrivals) -> None:
        self._store = store
        self._batching = batching
        self._load = load = batching.load
        self._arrivals = arrivals
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
        """By bundle: a future for each waiting caller, with the ordinal of its operation."""
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
        """The number of queued acks, by the lease or the group's partition that they name."""
        self.applied = 0
        self.failed = 0

    def start(self) -> None:
        """Start applying operations, unless it has started."""
        self._processing.start()

    def manage_load(self) -> None:
        """Start applying operations, and deciding which requests are executed, queued and refused."""
        self._load.manage()
        self._lateness.start()
        self.start()

    def stop_waiting(self) -> None:
        """Let callers that wait for an operation return soon, whatever the operation's state."""
        asyncio.get_running_loop().call_later(self._stop_seconds_max, self._give_up)

    def _give_up(self) -> None:
        for futures in self._awaited.values():
            for future in futures:
                if not future.done():
                    future.set_result(None)
        self._awaited.clear()

    async def stop(self) -> None:
        """Stop; a pass in progress has limited time to finish. Safe to call twice."""
        self._lateness.stop()
        self._stopping = True
        self._give_up()
        await self._processing.stop()
        looking, self._looking = self._looking, None
        if looking is not None:
            await ended([looking], self._stop_seconds_max)

    def stir(self) -> None:
        """There may be something to apply."""
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
        """Queue a push; the receipts name the operation. Raises Overloaded."""
        operation = NewOperation(_dated(batches), order=order)
        queued = await self._queue(operation, reason)
        return PushResult(batches, [], operation=queued)

    async def push_applied(self, pushed: PushResult) -> PushResult:
        """Wait for a queued push; returns its receipts. Raises the error that it failed with, StillQueued."""
        assert pushed.operation is not None
        return (await self._outcome(pushed.operation.operation_id)).pushed(pushed.batches)

    async def ack(self, acks: Sequence[Ack]) -> list[AckOutcome]:
        """Queue acks while the server is busy or earlier acks wait; returns the outcomes once they are applied. Raises
        Overloaded, StillQueued."""
        if self._load.ack is Decision.REJECT:
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
        """Whether earlier acks from this process, for the same leases or cursors, still wait."""
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
        """The outcome of an operation; None if it has not ended in time."""
        bundle, ordinal = split_operation_id(operation_id)
        # Each caller has its own future: one that gives up must not end the wait of the others.
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
        """While a caller waits, poll for what other processes have applied."""
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
        """Apply what one call of each kind can; returns whether anything was applied."""
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
        self._note_applied(applied)
        return applied.operations > 0

    def _note_applied(self, applied: Applied) -> None:
        self.applied += applied.operations
        self.failed += applied.failed
        for bundle, outcomes in applied.settled:
            self._settle(bundle, outcomes)
        if applied.partitions_by_queue:
            self._arrivals.pushed_to(applied.partitions_by_queue, applied.messages_by_queue)
        if applied.first_due_at is not None:
            self._arrivals.scheduled(applied.first_due_at)
        if applied.acks:
            self._arrivals.released(applied.acks)
        if applied.failed:
            fields = {"action": "operations_ended_in_failure", "operations": applied.failed}
            logger.warning("operations_ended_in_failure", extra=fields)


def _dated(batches: Sequence[Batch]) -> Sequence[Batch]:
    """The batches with times instead of delays: delays count from now, not from when they are applied."""
    if all([batch.schedule is None or batch.schedule.delay_seconds is None for batch in batches]):
        return batches
    return [_dated_one(batch, datetime.now(UTC)) for batch in batches]


def _dated_one(batch: Batch, now: datetime) -> Batch:
    schedule = batch.schedule
    if schedule is None or schedule.delay_seconds is None:
        return batch
    due_at = now + timedelta(seconds=schedule.delay_seconds)
    return Batch(batch.queue, batch.partition, batch.columns, replace(schedule, deliver_at=due_at, delay_seconds=None))
