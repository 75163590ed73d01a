"""A store as a service: the verbs of the store, for unchecked input.

Every verb checks all of its input before the store sees any of it, so bad input changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import msgspec

from lockstep.config import Config
from lockstep.core.crons import Cron, NewCron
from lockstep.core.ids import parse_uuid
from lockstep.core.messages import Batch, NewMessage, PushResult
from lockstep.core.names import DEFAULT_PARTITION
from lockstep.core.operations import OperationInfo, OperationStats, Order, QueuedAs, QueueReason
from lockstep.core.outage import BreakerState, BufferStats, MaintenanceMode
from lockstep.core.policy import SECONDS_MAX
from lockstep.core.records import (
    Ack,
    AckOutcome,
    Continued,
    NextRequest,
    PendingRequest,
    Popped,
    PopRequest,
    Renewal,
    Renewed,
    TransactionResult,
)
from lockstep.core.statistics import StoreCounts
from lockstep.core.streams import (
    StreamCycle,
    StreamCycleResult,
)
from lockstep.core.times import check_seconds
from lockstep.engine import checks, schedule_checks, stream_checks
from lockstep.engine.administration import Administration
from lockstep.engine.balancing import Balancing
from lockstep.engine.batching import Batching
from lockstep.engine.incoming import check_list, check_push
from lockstep.engine.load import Decision, LoadKind, LoadState
from lockstep.engine.maintenance import Duties
from lockstep.engine.operation_queue import OperationQueue
from lockstep.engine.pace import CallCounts
from lockstep.engine.spooling import Spooling
from lockstep.engine.waiting import PopsAtOnce, WaitingCounts
from lockstep.errors import InvalidRequest, LeaseLost, OperationPending, Unavailable
from lockstep.storage.base import Store


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What the engine counts of its own work since it was created."""

    calls: Mapping[str, CallCounts]
    """By verb: how requests were joined into calls of the store."""
    waiting: WaitingCounts
    store: StoreCounts
    buffer: BufferStats | None
    """None if pushes are not buffered."""
    breaker: BreakerState
    load: Mapping[LoadKind, LoadState]
    operations_applied: int
    operations_failed: int


class _PopsAfter:
    """Pops of which the first one continues a lease. Raises LeaseLost if that lease is lost."""

    def __init__(
        self, request: NextRequest, next: Callable[[NextRequest], Awaitable[Continued]], pops: PopsAtOnce
    ) -> None:
        self._request = request
        self._next = next
        self._pops = pops
        self.acked: AckOutcome | None = None

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]:
        if self.acked is not None:
            return await self._pops.pop(requests)
        continued = await self._next(self._request)
        self.acked = continued.acked
        if not continued.acked.success:
            raise LeaseLost()
        return [continued.popped]


class Engine(Administration):
    """The verbs of Lockstep over any store, each documented in `storage/base/`."""

    def __init__(self, store: Store, config: Config, *, spool_dir: Path | None = None) -> None:
        """`spool_dir` is the directory for pushes that are buffered after `start_buffering`; None is a temporary
        directory."""
        super().__init__(store, config)
        self._waiting = self._arrivals.waiting
        self._promotion = self._arrivals.promotion
        self._batching = Batching(store, config, self._arrivals)
        self._load = self._batching.load
        self._balancing = Balancing(store, config)
        self._spool_dir = spool_dir
        self._spooling = Spooling(store, config, self._balancing, self._arrivals)
        self._operations = OperationQueue(store, config, self._batching, self._arrivals)

    async def __aenter__(self) -> Engine:
        try:
            await self.open()
        except BaseException:
            await self._store.close()  # the context was not entered, so nothing else closes it
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._operations.stop()
        await self._promotion.stop()
        await self.stop_waiting()
        await self._spooling.stop()
        await self._batching.close()
        await self._store.close()

    async def listen(self) -> None:
        """Let pushes of other processes, and of the store itself, wake the waiting pops."""
        await self._arrivals.listen()

    def start_operations(self) -> None:
        """Apply waiting operations from now on, and queue or refuse requests while busy, as servers do."""
        self._operations.manage_load()

    async def start_buffering(self) -> None:
        """Buffer pushes from now on while the store is away, and follow the maintenance mode, as servers do."""
        await self._spooling.start(self._spool_dir)

    async def stop_waiting(self) -> None:
        """Let every waiting pop return now, later pops without waiting, and calls that wait for a queued push soon."""
        self._operations.stop_waiting()
        await self._waiting.stop()

    def maintenance(self) -> Duties:
        """The background duties of a server on this store, not yet started."""
        return Duties(self._store, self._config, promotion=self._promotion)

    @property
    def counts(self) -> EngineCounts:
        """How requests are joined, how pops wait, and the state of the store."""
        return EngineCounts(
            calls=self._batching.counts,
            waiting=self._waiting.counts,
            store=self._store.counts(),
            buffer=self._spooling.buffer_stats(),
            breaker=self._spooling.breaker,
            load=self._load.states,
            operations_applied=self._operations.applied,
            operations_failed=self._operations.failed,
        )

    # Messages in and out

    async def push(
        self,
        messages: Sequence[Batch] | Sequence[NewMessage],
        *,
        queued: QueuedAs = "wait",
        told_in: Order | None = None,
    ) -> PushResult:
        """Push batches, or single messages; the receipts are in the order of the input either way.

        A server that is busy, or still has to apply earlier pushes to the same partitions, queues the push as an
        operation. The call then waits until the operation is applied; if `queued` is `return`, it returns receipts that
        name the operation. `told_in` is the order in which the operation reports the messages of batches: for each
        message, its batch and its position there.
        """
        if queued not in ("wait", "return"):
            raise InvalidRequest(f"queued must be wait or return, not {queued!r}")
        checked, order = check_push(messages, self._config)
        if self._spooling.gate[0]:
            buffered = await self._spooling.push(checked)
            if buffered is not None:
                return buffered.in_order(order)
        batches: Sequence[Batch] = checked
        pushed: PushResult | None = None
        reason: QueueReason | None = None
        repeated = False
        while pushed is None:
            try:
                batches = await self._balancing.place(batches)
                if reason is None and self._load.push is not Decision.EXECUTE and not self._load.executes_push():
                    reason = "system_busy"
                if reason is None:
                    pushed = await self._batching.push(batches)
                else:
                    pushed = await self._operations.queue_push(batches, order or told_in, reason)
            except OperationPending:
                reason = "maintaining_order"
            except Unavailable as error:
                pushed = await self._spooling.rescue(batches, error, repeated=repeated)
                repeated = True
        if pushed.operation is not None and queued == "wait":
            pushed = await self._operations.push_applied(pushed)
        return pushed.in_order(order)

    async def push_applied(self, pushed: PushResult) -> PushResult:
        """Wait for a queued push; returns its receipts. Raises the error that it failed with, and StillQueued after the
        setting operation_wait_seconds_max."""
        return await self._operations.push_applied(pushed)

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]:
        check_list(requests, what="pops")
        checked = [checks.check_pop(request, self._config) for request in requests]
        if self._spooling.pops_paused:
            return [Popped(request.group) for request in checked]
        if self._load.pop is not Decision.EXECUTE:
            raise self._load.refusal("pop")
        answers = await self._batching.pop(checked)
        self._arrivals.leased(checked, answers)
        return answers

    async def wait_pop(self, request: PopRequest, seconds: float) -> Popped:
        """Pop; if nothing is available, wait up to `seconds`.

        Cancelling the call is safe: anything leased for it in the meantime is released.
        """
        checks.check_pop(request, self._config)
        checks.check_wait_seconds(seconds, self._config)
        if self._spooling.pops_paused:
            return Popped(request.group)
        if self._load.pop is not Decision.EXECUTE:
            raise self._load.refusal("pop")
        await self.listen()
        self._promotion.start()
        popped = await self._waiting.pop(self._batching, request, seconds)
        self._arrivals.leased([request], [popped])
        return popped

    async def next(self, requests: Sequence[NextRequest]) -> list[Continued]:
        """Complete everything that leases hold, and lease the next messages. A lost lease gets nothing.

        It is never queued: a server that is too busy refuses it as a whole.
        """
        check_list(requests, what="requests")
        checked = [checks.check_next(request, self._config) for request in requests]
        return await self._next(list(map(self._giving_way, checked)))

    async def _next(self, requests: Sequence[NextRequest]) -> list[Continued]:
        acks = [Ack(lease_id=request.lease_id) for request in requests]
        if self._spooling.pops_paused:
            return [
                Continued(acked, Popped(request.pop.group))
                for request, acked in zip(requests, await self.ack(acks), strict=True)
            ]
        if self._load.pop is not Decision.EXECUTE:
            raise self._load.refusal("pop")
        if self._operations.is_behind(acks):
            return [await self._ack_and_pop(request) for request in requests]
        answers = await self._batching.next(requests)
        self._arrivals.leased([request.pop for request in requests], [one.popped for one in answers])
        return answers

    async def _ack_and_pop(self, request: NextRequest) -> Continued:
        """In two steps, because earlier acks of the lease still wait to be applied."""
        [acked] = await self._operations.ack([Ack(lease_id=request.lease_id)])
        [popped] = await self.pop([request.pop]) if acked.success else [Popped(request.pop.group)]
        return Continued(acked, popped)

    def _giving_way(self, request: NextRequest) -> NextRequest:
        if request.give_way or not self._waiting.is_waited_for(request.pop):
            return request
        return msgspec.structs.replace(request, give_way=True)

    async def wait_next(self, request: NextRequest, seconds: float) -> Continued:
        """Complete everything that a lease holds, and lease the next messages; if nothing is available, wait up to
        `seconds`.

        Cancelling the call is safe: the lease is completed anyway, and anything leased in the meantime is released.
        """
        request = self._giving_way(checks.check_next(request, self._config))
        checks.check_wait_seconds(seconds, self._config)
        await self.listen()
        self._promotion.start()

        async def first(request: NextRequest) -> Continued:
            return (await self._next([request]))[0]

        pops = _PopsAfter(request, first, self._batching)
        try:
            popped = await self._waiting.pop(pops, request.pop, seconds)
        except LeaseLost:
            popped = Popped(request.pop.group)
        assert pops.acked is not None
        self._arrivals.leased([request.pop], [popped])
        return Continued(pops.acked, popped)

    async def has_pending(self, requests: Sequence[PendingRequest]) -> list[bool]:
        check_list(requests, what="requests")
        return await self._store.has_pending([checks.check_pending(request) for request in requests])

    def release(self, popped: Popped) -> None:
        """Release the lease of an answer that never reached its caller, in the background."""
        self._batching.release([popped])

    async def ack(self, acks: Sequence[Ack], *, atomic: bool = False) -> list[AckOutcome]:
        """Ack; with `atomic`, all or nothing: if one fails, TransactionRolledBack has the outcome of each."""
        acks = checks.check_acks(acks, self._config)
        checks.check_boolean(atomic, what="atomic")
        if atomic:
            self._load.check("ack")
            outcomes = (await self._store.transaction(acks, [])).acks
            self._arrivals.released(outcomes)
            return outcomes
        if self._load.ack is Decision.EXECUTE and not self._operations.is_behind(acks):
            return await self._batching.ack(acks)
        return await self._operations.ack(acks)  # its processor notifies the waiting pops

    async def nack(self, acks: Sequence[Ack]) -> list[AckOutcome]:
        """Ack with the status `failed`."""
        check_list(acks, what="acks")
        failed = [msgspec.structs.replace(checks.check_kind(ack, Ack), status="failed") for ack in acks]
        return await self.ack(failed)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        return await self._batching.renew(checks.check_renewals(renewals, self._config))

    async def transaction(
        self,
        acks: Sequence[Ack],
        messages: Sequence[Batch] | Sequence[NewMessage],
        *,
        required_leases: Sequence[str] = (),
    ) -> TransactionResult:
        acks = checks.check_acks(acks, self._config)
        leases = checks.check_leases(required_leases, self._config)
        checked, order = check_push(messages, self._config)
        if checked:
            self._spooling.refuse_while_shut()
            self._load.check("push")
        batches = await self._balancing.place(checked)
        result = await self._store.transaction(acks, batches, required_leases=leases)
        self._arrivals.released(result.acks)
        if batches:
            self._arrivals.pushed(batches, result.pushed)
        return TransactionResult(result.acks, result.pushed.in_order(order))

    # Requests that wait to be applied

    def let_in_push(self) -> None:
        """Raises Overloaded if a push that begins to arrive would be refused, so that its body need not be read."""
        if not self._spooling.gate[0]:
            self._load.let_in()

    def check_load(self, kind: LoadKind) -> None:
        """Raises Overloaded if requests of this kind are refused now. A server asks before it decodes a request."""
        if kind == "push" and self._spooling.gate[0]:
            return  # it goes to the spool, not to the store
        self._load.check(kind)

    async def operation(self, operation_id: str, *, wait_seconds: float = 0.0) -> OperationInfo:
        """One operation. With `wait_seconds`, wait up to that long for it to end."""
        operation_id = str(parse_uuid(operation_id, what="operation id"))
        check_seconds(wait_seconds, what="wait_seconds", high=SECONDS_MAX)
        wait_seconds = min(wait_seconds, self._config.pop_wait_seconds_max)
        info = await self._store.operation(operation_id)
        if info.status != "pending" or wait_seconds == 0:
            return info
        await self._operations.wait(operation_id, wait_seconds)
        return await self._store.operation(operation_id)

    async def operation_stats(self) -> OperationStats:
        """The operations that wait and that failed, over all servers, and the load of this server."""
        counts = await self._store.operation_counts()
        return self._operations.stats(counts)

    async def retry_operation(self, operation_id: str) -> OperationInfo:
        """Queue a failed operation again, in its old position."""
        info = await self._store.retry_operation(str(parse_uuid(operation_id, what="operation id")))
        self._operations.stir()
        return info

    async def stream_cycle(
        self, cycle: StreamCycle, messages: Sequence[Batch] | Sequence[NewMessage] = ()
    ) -> StreamCycleResult:
        cycle = stream_checks.check_cycle(cycle, self._config)
        checked, order = check_push(messages, self._config)
        if checked:
            self._spooling.refuse_while_shut()
            self._load.check("push")
        batches = await self._balancing.place(checked)
        result = await self._store.stream_cycle(cycle, batches)
        if result.ack is not None:
            self._arrivals.released([result.ack])
        if batches:
            self._arrivals.pushed(batches, result.pushed)
        return replace(result, pushed=result.pushed.in_order(order))

    async def set_cron(self, cron: NewCron) -> Cron:
        checked = schedule_checks.check_cron(cron, self._config)
        if checked.partition == DEFAULT_PARTITION:
            # The partition is chosen once, so that the messages of a cron stay in order.
            [placed] = await self._balancing.place([Batch.of(checked.queue, [checked.payload])])
            checked = msgspec.structs.replace(checked, partition=placed.partition)
        known = await self._store.set_cron(checked)
        self._arrivals.scheduled(known.next_at)
        return known

    async def maintenance_mode(self) -> MaintenanceMode:
        """Whether pushes are buffered and pops find nothing; and the buffer of this machine."""
        return await self._spooling.mode()

    async def set_maintenance_mode(self, *, push: bool | None = None, pop: bool | None = None) -> MaintenanceMode:
        """Make all servers on the store buffer pushes, or drain their buffers; and make pops find nothing, or messages
        again. None leaves the mode as it is."""
        for what, given in (("push", push), ("pop", pop)):
            if given is not None:
                checks.check_boolean(given, what=what)
        return await self._spooling.set_mode(push=push, pop=pop)

    async def retry_rejected(self) -> int:
        """Push the records that the database refused and that were set aside on this machine; returns the number of
        messages. If the database refuses one again, its error is raised after the others were pushed."""
        return await self._spooling.retry_rejected()

    async def accept_buffer_loss(self) -> int:
        """Push what is buffered on this machine although the database has lost earlier pushes from here which this
        machine no longer has; returns the number of lost bytes."""
        return await self._spooling.accept_loss()
