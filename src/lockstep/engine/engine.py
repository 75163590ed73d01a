"""A store as a service: the verbs of the store, for input that nobody has checked yet.

Every verb checks all of its input before the store sees any of it, so bad input changes nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from lockstep.config import Config
from lockstep.core.buckets import SampleSpan
from lockstep.core.crons import Cron, NewCron
from lockstep.core.ids import parse_uuid
from lockstep.core.maintenance import DutyInfo, Removal, Sample
from lockstep.core.messages import Batch, Message, NewMessage, NewSchedule, PushResult, Receipt
from lockstep.core.names import DEFAULT_PARTITION, QUEUE_MODE, check_name
from lockstep.core.operations import OperationInfo, OperationPage, OperationStats, OperationStatus, QueuedAs
from lockstep.core.outage import BreakerState, BufferStats, MaintenanceMode
from lockstep.core.overview import LabelInfo, Overview
from lockstep.core.policy import SECONDS_MAX, GroupMode, QueueOptions
from lockstep.core.records import (
    LEASES_ENDED,
    Ack,
    AckOutcome,
    Arrival,
    ClearScope,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPage,
    Depth,
    GroupInfo,
    LeaseInfo,
    MessageFilter,
    MessagePage,
    MessageView,
    PartitionInfo,
    PartitionLag,
    PartitionStats,
    PendingRequest,
    Popped,
    PopRequest,
    Position,
    Problem,
    QueueInfo,
    Renewal,
    Renewed,
    SparkStreamInfo,
    Subscription,
    TransactionResult,
    Utilisation,
)
from lockstep.core.schedules import Scheduled, ScheduleFilter, ScheduleName, SchedulePage
from lockstep.core.statistics import DatabaseStats, StoreCounts
from lockstep.core.streams import (
    NewStreamQuery,
    StateFilter,
    StateRow,
    StreamCycle,
    StreamCycleResult,
    StreamQuery,
)
from lockstep.core.times import check_seconds, check_time
from lockstep.core.traces import NamedTracePage, NewTraceEvent, TraceEvent, TraceNamePage
from lockstep.engine import checks, schedule_checks, stream_checks
from lockstep.engine.balancing import Balancing
from lockstep.engine.batching import Batching, LoadKind
from lockstep.engine.incoming import Order, check_list, check_push
from lockstep.engine.lane import CallCounts
from lockstep.engine.load import Answer, Load, LoadState
from lockstep.engine.maintenance import Maintenance, Promotion
from lockstep.engine.operations import Operations, Tell
from lockstep.engine.spooling import Spooling
from lockstep.engine.telling import telling
from lockstep.engine.waiting import Waiting, WaitingCounts
from lockstep.errors import InvalidRequest, OperationPending, TooLarge, Unavailable
from lockstep.storage.base import Store


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What the engine counts of its own work, since it was made."""

    calls: Mapping[str, CallCounts]
    """By verb: how its requests were joined into calls of the store."""
    waiting: WaitingCounts
    store: StoreCounts
    buffer: BufferStats | None
    """None where pushes are not buffered."""
    breaker: BreakerState
    load: Mapping[LoadKind, LoadState]
    operations_applied: int
    operations_failed: int


class Engine:
    """The verbs of Lockstep over any store. What they do is said in `storage/base.py`."""

    def __init__(self, store: Store, config: Config, *, spool_dir: Path | None = None) -> None:
        """`spool_dir` is where it buffers pushes, once it is told to; None is a directory that is gone with it."""
        self._store = store
        self._config = config
        self._batching = Batching(
            store, config, pushed=self._tell_pushed, released=self._tell_released, crowded=self._tell_crowded
        )
        self._load = Load(
            config,
            crowds=self._batching.crowds,
            clock=time.monotonic,
            queueing=self._batching.queueing,
            has_time=self._batching.has_time,
            queueing_seconds=self._batching.queueing_seconds,
            refuse_waiting=self._batching.refuse_waiting,
        )
        self._balancing = Balancing(store, config)
        self._waiting = Waiting(store, self._batching.pop, config)
        self._promotion = Promotion(store, config, tell=self._tell_partitions)
        self._spool_dir = spool_dir
        self._spooling = Spooling(
            store, config, place=self._balancing.place, tell=self._tell_pushed, paused=self._waiting.pause
        )
        self._operations = Operations(
            store,
            config,
            self._batching,
            self._load,
            Tell(self._tell_partitions, self._tell_scheduled, self._tell_released),
        )
        self._listening = False

    async def __aenter__(self) -> Engine:
        try:
            await self.open()
        except BaseException:
            await self._store.close()  # nobody else will: the context was not entered
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
        """Hear what other processes on the same store do, and the store itself: what they push wakes the pops that wait
        here."""
        if not self._listening:
            self._listening = True
            await self._store.listen(self._heard, waiting=self._waiting.is_anybody)

    def _heard(self, queue: str | None, arrival: Arrival) -> None:
        if arrival.messages and not arrival.partitions:
            self._promotion.stir()
        else:
            self._waiting.heard(queue, arrival)

    def start_operations(self) -> None:
        """From now on apply operations that wait, and queue or refuse requests while it is busy: what servers do."""
        self._operations.manage_load()

    async def start_buffering(self) -> None:
        """From now on buffer pushes while the store is away, and follow the maintenance mode: what servers do."""
        await self._spooling.start(self._spool_dir)

    async def stop_waiting(self) -> None:
        """Let every waiting pop answer now, and every later one without a wait; and pushes that wait to be applied,
        soon."""
        self._operations.stop_waiting()
        await self._waiting.stop()

    def maintenance(self) -> Maintenance:
        """The background duties of a server on this store, not yet begun."""
        return Maintenance(self._store, self._config, promotion=self._promotion)

    @property
    def counts(self) -> EngineCounts:
        """How requests are joined, how pops wait, and how the store stands."""
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

    async def ping(self) -> None:
        await self._store.ping()

    async def ready(self) -> None:
        await self._store.ready()

    # Queues and partitions

    async def configure(
        self,
        queue: str,
        options: QueueOptions | None = None,
        *,
        namespace: str | None = None,
        task: str | None = None,
    ) -> QueueInfo:
        """Create the queue or replace its configuration; without options, by the defaults."""
        checks.check_queue(queue)
        checks.check_labels(namespace=namespace, task=task)
        options = checks.check_queue_options(QueueOptions() if options is None else options, self._config)
        checks.check_work_queue_name(queue, msgspec.structs.asdict(options), self._config)
        info = await self._store.configure(queue, options, namespace=namespace, task=task)
        # A poll that waits for a queue that did not exist learns how its group is served.
        self._tell_stirred(queue)
        return info

    async def update_queue(
        self, queue: str, changes: dict[str, Any], *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        """Change the options that are given, by name; the others stay."""
        checks.check_queue(queue)
        checks.check_labels(namespace=namespace, task=task)
        checks.check_option_changes(changes, self._config)
        checks.check_work_queue_name(queue, changes, self._config)
        info = await self._store.update_queue(queue, changes, namespace=namespace, task=task)
        self._tell_stirred(queue)
        return info

    async def delete_queue(self, queue: str) -> bool:
        checks.check_queue(queue)
        return await self._store.delete_queue(queue)

    async def clear(self, queue: str, *, partition: str | None = None, scope: ClearScope = "all") -> int:
        checks.check_queue(queue)
        checks.check_names(partition=partition)
        checks.check_scope(scope)
        return await self._store.clear(queue, partition=partition, scope=scope)

    async def queues(
        self,
        *,
        namespace: str | None = None,
        task: str | None = None,
        after: str | None = None,
        from_name: str | None = None,
        limit: int = 100,
        exact: bool = False,
    ) -> list[QueueInfo]:
        checks.check_labels(namespace=namespace, task=task, after=after)
        checks.check_labels(after=from_name)
        checks.check_limit(limit, self._config)
        return await self._store.queues(
            namespace=namespace, task=task, after=after, from_name=from_name, limit=limit, exact=exact
        )

    async def queue(self, queue: str, *, exact: bool = False) -> QueueInfo:
        checks.check_queue(queue)
        return await self._store.queue(queue, exact=exact)

    async def partitions(
        self, queue: str, *, after: str | None = None, prefix: str | None = None, limit: int = 100
    ) -> list[PartitionInfo]:
        checks.check_queue(queue)
        checks.check_labels(after=after)
        checks.check_labels(after=prefix)
        checks.check_limit(limit, self._config)
        return await self._store.partitions(queue, after=after, prefix=prefix, limit=limit)

    async def partition(self, queue: str, partition: str) -> PartitionInfo:
        checks.check_queue(queue)
        checks.check_partition(partition)
        return await self._store.partition(queue, partition)

    async def stats(self, queue: str, *, after: str | None = None, limit: int = 100) -> list[PartitionStats]:
        checks.check_queue(queue)
        checks.check_labels(after=after)
        checks.check_limit(limit, self._config)
        return await self._store.stats(queue, after=after, limit=limit)

    # Messages in and out

    async def push(
        self,
        messages: Sequence[Batch] | Sequence[NewMessage],
        *,
        queued: QueuedAs = "wait",
        told_in: Order | None = None,
    ) -> PushResult:
        """Push batches, or single messages; the receipts are in the order of the input either way.

        A server that is busy, or has earlier pushes to the same partitions to apply, queues it as an operation. Then it
        waits until that is applied; or, if `queued` is `return`, the receipts just name it. `told_in` is the order, for
        each message its batch and its position there, in which the operation will tell what became of batches.
        """
        if queued not in ("wait", "return"):
            raise InvalidRequest(f"queued must be wait or return, not {queued!r}")
        checked, order = check_push(messages, self._config)
        if self._spooling.gate[0]:
            buffered = await self._spooling.push(checked)
            if buffered is not None:
                return buffered.in_order(order)
        batches: Sequence[Batch] = checked
        accept = partial(self._accept_push, told_in=order or told_in)
        try:
            batches = await self._balancing.place(checked)
            pushed = await accept(batches)
        except Unavailable as error:
            pushed = await self._spooling.rescue(batches, error, accept)
        if pushed.operation is not None and queued == "wait":
            pushed = await self._operations.push_applied(pushed)
        return pushed.in_order(order)

    async def _accept_push(self, batches: Sequence[Batch], *, told_in: Order | None) -> PushResult:
        """Push batches, or queue them as an operation: its processor tells of them."""
        if self._load.push is not Answer.EXECUTE and not self._load.executes_push():
            return await self._operations.queue_push(batches, told_in, "system_busy")
        try:
            return await self._batching.push(batches)
        except OperationPending:
            return await self._operations.queue_push(batches, told_in, "maintaining_order")

    async def push_applied(self, pushed: PushResult) -> PushResult:
        """The receipts of a push that was queued, once it is applied. Raises what it failed with; StillQueued after the
        setting operation_wait_seconds_max."""
        return await self._operations.push_applied(pushed)

    def _tell_crowded(self, kind: LoadKind) -> None:
        self._load.note_crowd(kind)

    @telling
    def _tell_pushed(self, batches: Sequence[Batch], pushed: PushResult) -> None:
        """Wake the pops that wait for what was pushed, here and elsewhere; and the promotion, for what is to wait."""
        if any([batch.schedule is not None for batch in batches]):
            self._tell_scheduled(pushed.first_due_at())
            placed = zip(batches, pushed.placements, strict=True)
            batches = [batch for batch, placement in placed if placement.appointments is None]
        partitions: dict[str, set[str]] = {}
        messages: dict[str, int] = {}
        for batch in batches:
            partitions.setdefault(batch.queue, set()).add(batch.partition)
            messages[batch.queue] = messages.get(batch.queue, 0) + len(batch.columns.payloads)
        self._tell_partitions(partitions, messages)

    @telling
    def _tell_partitions(
        self, partitions_by_queue: Mapping[str, set[str]], messages_by_queue: Mapping[str, int]
    ) -> None:
        self._waiting.pushed(partitions_by_queue, messages_by_queue)
        pushed = partitions_by_queue.items()
        self._store.announce({queue: Arrival(len(found), messages_by_queue[queue]) for queue, found in pushed})

    @telling
    def _tell_scheduled(self, due_at: datetime | None) -> None:
        """Who schedules sees to it that it comes about: there may be no server on this store."""
        self._promotion.start()
        self._promotion.note(due_at)

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]:
        check_list(requests, what="pops")
        checked = [checks.check_pop(request, self._config) for request in requests]
        if self._spooling.pops_paused:
            return [Popped(request.group) for request in checked]
        if self._load.pop is not Answer.EXECUTE:
            raise self._load.refusal("pop")
        answers = await self._batching.pop(checked)
        self._tell_leased(checked, answers)
        return answers

    async def wait_pop(self, request: PopRequest, seconds: float) -> Popped:
        """Pop; if there is nothing, wait for something for as long as `seconds`.

        Who stops waiting, by cancelling the call, loses nothing: what was leased for it meanwhile is released.
        """
        checks.check_pop(request, self._config)
        checks.check_wait_seconds(seconds, self._config)
        if self._spooling.pops_paused:
            return Popped(request.group)
        if self._load.pop is not Answer.EXECUTE:
            raise self._load.refusal("pop")
        await self.listen()
        self._promotion.start()
        popped = await self._waiting.pop(request, seconds)
        self._tell_leased([request], [popped])
        return popped

    def _tell_leased(self, requests: Sequence[PopRequest], answers: Sequence[Popped]) -> None:
        """Leases that end before those who wait look again are told of; longer ones they see in time."""
        for request, popped in zip(requests, answers, strict=True):
            if request.lease_seconds is not None and request.lease_seconds < self._config.pop_check_seconds_max:
                for queue in {run.queue for run in popped.runs if popped.lease_id is not None}:
                    self._waiting.look_at(queue)
                    self._store.announce({queue: LEASES_ENDED})

    async def has_pending(self, requests: Sequence[PendingRequest]) -> list[bool]:
        check_list(requests, what="requests")
        return await self._store.has_pending([checks.check_pending(request) for request in requests])

    def release(self, popped: Popped) -> None:
        """Give back what was popped for somebody who will never see it, in the background."""
        self._batching.release([popped])

    async def ack(self, acks: Sequence[Ack], *, atomic: bool = False) -> list[AckOutcome]:
        """Ack; with `atomic` all or nothing: if one fails, TransactionRolledBack tells what became of each."""
        acks = checks.check_acks(acks, self._config)
        checks.check_boolean(atomic, what="atomic")
        if atomic:
            self._load.check("ack")
            outcomes = (await self._store.transaction(acks, [])).acks
            self._tell_released(outcomes)
            return outcomes
        if self._load.ack is Answer.EXECUTE and not self._operations.is_behind(acks):
            return await self._batching.ack(acks)
        return await self._operations.ack(acks)  # who applies it tells of it

    @telling
    def _tell_released(self, outcomes: Sequence[AckOutcome]) -> None:
        """A partition that is free again may have more for the next consumer, here or elsewhere."""
        released = Counter([outcome.queue for outcome in outcomes if outcome.released and outcome.queue is not None])
        for queue, partitions in released.items():
            self._waiting.stirred(queue, count=partitions)
        if released:
            self._store.announce(dict.fromkeys(released, LEASES_ENDED))

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
        self._tell_released(result.acks)
        if batches:
            self._tell_pushed(batches, result.pushed)
        return TransactionResult(result.acks, result.pushed.in_order(order))

    # Requests that wait to be applied

    def let_in_push(self) -> None:
        """Raises Overloaded if a push that begins to arrive is not worth reading, because it would be refused."""
        if not self._spooling.gate[0]:
            self._load.let_in()

    def check_load(self, kind: LoadKind) -> None:
        """Raises Overloaded if requests of this kind are refused now: worth asking before a request is even read."""
        if kind == "push" and self._spooling.gate[0]:
            return  # it does not come to the store now
        self._load.check(kind)

    async def operations(
        self,
        *,
        status: OperationStatus | None = None,
        queue: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> OperationPage:
        if status not in (None, "pending", "done", "failed"):
            raise InvalidRequest(f"status must be pending, done or failed, not {status!r}")
        checks.check_page_cursor(cursor)
        checks.check_limit(limit, self._config)
        checks.check_names(queue=queue)
        return await self._store.operations(status=status, queue=queue, cursor=cursor, limit=limit)

    async def operation(self, operation_id: str, *, wait_seconds: float = 0.0) -> OperationInfo:
        """One operation; with `wait_seconds`, once something has become of it, or the time is up."""
        operation_id = str(parse_uuid(operation_id, what="operation id"))
        check_seconds(wait_seconds, what="wait_seconds", high=SECONDS_MAX)
        wait_seconds = min(wait_seconds, self._config.pop_wait_seconds_max)
        info = await self._store.operation(operation_id)
        if info.status != "pending" or wait_seconds == 0:
            return info
        await self._operations.wait(operation_id, wait_seconds)
        return await self._store.operation(operation_id)

    async def operation_stats(self) -> OperationStats:
        """What waits and has failed, of all servers together; and how busy this one is."""
        counts = await self._store.operation_counts()
        return self._operations.stats(counts)

    async def retry_operation(self, operation_id: str) -> OperationInfo:
        """Let an operation that failed wait again, in its old place."""
        info = await self._store.retry_operation(str(parse_uuid(operation_id, what="operation id")))
        self._operations.stir()
        return info

    # Groups

    async def subscribe(
        self, queue: str, group: str, subscription: Subscription | None = None, *, mode: GroupMode | None = None
    ) -> GroupInfo:
        """Create the group on the queue unless it is there; by default it begins with the first message, and is served
        as the queue says."""
        checks.check_queue(queue)
        checks.check_group(group)
        checks.check_mode(mode)
        checks.check_shared_name(queue, mode, self._config)
        subscription = checks.check_subscription(Subscription() if subscription is None else subscription)
        return await self._store.subscribe(queue, group, subscription, mode=mode)

    async def set_subscription(self, group: str, subscription: Subscription, *, queue: str | None = None) -> int:
        checks.check_subscribable(group)
        checks.check_subscription(subscription)
        checks.check_names(queue=queue)
        return await self._store.set_subscription(group, subscription, queue=queue)

    async def seek(self, queue: str, group: str, position: Position, *, partition: str | None = None) -> int:
        checks.check_queue(queue)
        checks.check_group(group)
        checks.check_position(position)
        checks.check_names(partition=partition)
        moved = await self._store.seek(queue, group, position, partition=partition)
        self._tell_stirred(queue)
        return moved

    def _tell_stirred(self, queue: str | None) -> None:
        """Something in a queue, or in any, became due without a push."""
        self._waiting.stirred(queue)
        if queue is not None:
            self._store.announce({queue: Arrival()})

    async def delete_group(self, group: str, *, queue: str | None = None, forget_subscription: bool = True) -> int:
        checks.check_group(group)
        checks.check_names(queue=queue)
        checks.check_boolean(forget_subscription, what="forget_subscription")
        deleted = await self._store.delete_group(group, queue=queue, forget_subscription=forget_subscription)
        self._tell_stirred(queue)  # polls of the group that wait create it anew
        return deleted

    async def groups(
        self, *, queue: str | None = None, group: str | None = None, exact: bool = False
    ) -> list[GroupInfo]:
        checks.check_names(queue=queue, group=group)
        return await self._store.groups(queue=queue, group=group, exact=exact)

    async def lag(
        self,
        queue: str,
        *,
        group: str | None = None,
        partition: str | None = None,
        after_partition_id: int = 0,
        limit: int = 1000,
    ) -> list[PartitionLag]:
        checks.check_queue(queue)
        checks.check_names(group=group, partition=partition)
        checks.check_integer(after_partition_id, what="after_partition_id", low=0)
        checks.check_limit(limit, self._config)
        return await self._store.lag(
            queue, group=group, partition=partition, after_partition_id=after_partition_id, limit=limit
        )

    async def spark_streams(self, *, queue: str | None = None) -> list[SparkStreamInfo]:
        checks.check_names(queue=queue)
        return await self._store.spark_streams(queue=queue)

    async def forget_spark_stream(self, stream_id: str) -> int:
        check_name(stream_id, what="stream_id")
        return await self._store.forget_spark_stream(stream_id)

    async def accept_spark_stream(self, stream_id: str) -> int:
        check_name(stream_id, what="stream_id")
        return await self._store.accept_spark_stream(stream_id)

    async def depth(self, queue: str, group: str, *, exact: bool = False) -> Depth:
        checks.check_queue(queue)
        checks.check_group(group)
        return await self._store.depth(queue, group, exact=exact)

    # Looking at messages

    async def messages(
        self, where: MessageFilter, *, newest_first: bool = False, cursor: str | None = None, limit: int = 100
    ) -> MessagePage:
        checks.check_message_filter(where)
        checks.check_boolean(newest_first, what="newest_first")
        checks.check_page_cursor(cursor)
        checks.check_limit(limit, self._config)
        return await self._store.messages(where, newest_first=newest_first, cursor=cursor, limit=limit)

    async def message(self, identity: str, *, partition_id: int | None = None) -> MessageView:
        if partition_id is None:
            return await self._store.message(str(parse_uuid(identity, what="message id")))
        checks.check_transaction_id(identity)
        checks.check_integer(partition_id, what="partition id", low=1)
        return await self._store.message(identity, partition_id=partition_id)

    async def trace(self, trace_id: str, *, limit: int = 1000) -> list[Message]:
        checks.check_limit(limit, self._config)
        return await self._store.trace(str(parse_uuid(trace_id, what="trace id")), limit=limit)

    async def namespaces(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:
        checks.check_labels(after=after)
        checks.check_limit(limit, self._config)
        return await self._store.namespaces(after=after, limit=limit, exact=exact)

    async def tasks(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:
        checks.check_labels(after=after)
        checks.check_limit(limit, self._config)
        return await self._store.tasks(after=after, limit=limit, exact=exact)

    async def overview(self, *, exact: bool = False) -> Overview:
        return await self._store.overview(exact=exact)

    # Single messages

    async def remove_message(self, partition_id: int, transaction_id: str) -> None:
        stream_checks.check_message(partition_id, transaction_id)
        await self._store.remove_message(partition_id, transaction_id)
        self._tell_stirred(None)

    async def retry_message(self, partition_id: int, transaction_id: str) -> Receipt:
        stream_checks.check_message(partition_id, transaction_id)
        receipt = await self._store.retry_message(partition_id, transaction_id)
        self._tell_stirred(receipt.queue)
        return receipt

    async def bury_message(
        self, partition_id: int, transaction_id: str, *, group: str = QUEUE_MODE, error: str | None = None
    ) -> int:
        stream_checks.check_message(partition_id, transaction_id)
        checks.check_group(group)
        error = checks.check_error(error, self._config)
        buried = await self._store.bury_message(partition_id, transaction_id, group=group, error=error)
        self._tell_stirred(None)
        return buried

    # Trace events

    async def record_trace(self, event: NewTraceEvent) -> int:
        return await self._store.record_trace(stream_checks.check_trace(event, self._config))

    async def traces_of_message(self, partition_id: int, transaction_id: str, *, limit: int = 1000) -> list[TraceEvent]:
        stream_checks.check_message(partition_id, transaction_id)
        checks.check_limit(limit, self._config)
        return await self._store.traces_of_message(partition_id, transaction_id, limit=limit)

    async def traces_by_name(self, name: str, *, limit: int = 100, offset: int = 0) -> NamedTracePage:
        check_name(name, what="trace name")
        checks.check_limit(limit, self._config)
        checks.check_integer(offset, what="offset", low=0)
        return await self._store.traces_by_name(name, limit=limit, offset=offset)

    async def trace_names(self, *, limit: int = 100, offset: int = 0) -> TraceNamePage:
        checks.check_limit(limit, self._config)
        checks.check_integer(offset, what="offset", low=0)
        return await self._store.trace_names(limit=limit, offset=offset)

    # Stream queries

    async def register_stream_query(self, query: NewStreamQuery) -> StreamQuery:
        return await self._store.register_stream_query(stream_checks.check_stream_query(query))

    async def stream_state(self, where: StateFilter) -> list[StateRow]:
        """All rows that match. Raises TooLarge if they are more than the setting stream_rows_max allows."""
        where = stream_checks.check_state_filter(where, self._config)
        rows_max = self._config.stream_rows_max
        rows = await self._store.stream_state(where, limit=rows_max + 1)
        if len(rows) > rows_max:
            raise TooLarge(f"more than {rows_max} rows match; ask by keys, or by a longer prefix")
        return rows

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
            self._tell_released([result.ack])
        if batches:
            self._tell_pushed(batches, result.pushed)
        return replace(result, pushed=result.pushed.in_order(order))

    # Messages that wait for their time

    async def schedules(self, where: ScheduleFilter, *, cursor: str | None = None, limit: int = 100) -> SchedulePage:
        schedule_checks.check_schedule_filter(where)
        schedule_checks.check_schedule_cursor(cursor)
        checks.check_limit(limit, self._config)
        return await self._store.schedules(where, cursor=cursor, limit=limit)

    async def schedule(self, which: ScheduleName) -> Scheduled:
        return await self._store.schedule(schedule_checks.check_schedule_name(which))

    async def cancel_schedule(self, which: ScheduleName) -> bool:
        return await self._store.cancel_schedule(schedule_checks.check_schedule_name(which))

    async def reschedule(self, which: ScheduleName, schedule: NewSchedule) -> Scheduled:
        schedule_checks.check_schedule_name(which)
        schedule_checks.check_new_time(schedule)
        moved = await self._store.reschedule(which, schedule)
        self._tell_scheduled(moved.due_at)
        return moved

    async def set_cron(self, cron: NewCron) -> Cron:
        checked = schedule_checks.check_cron(cron, self._config)
        if checked.partition == DEFAULT_PARTITION:
            # Placed once and for all: what a cron pushes stays in order.
            [placed] = await self._balancing.place([Batch.of(checked.queue, [checked.payload])])
            checked = msgspec.structs.replace(checked, partition=placed.partition)
        known = await self._store.set_cron(checked)
        self._tell_scheduled(known.next_at)
        return known

    async def crons(self, *, after: str | None = None, limit: int = 100) -> list[Cron]:
        checks.check_labels(after=after)
        checks.check_limit(limit, self._config)
        return await self._store.crons(after=after, limit=limit)

    async def cron(self, name: str) -> Cron:
        return await self._store.cron(schedule_checks.check_cron_name(name))

    async def enable_cron(self, name: str, enabled: bool) -> Cron:
        schedule_checks.check_cron_name(name)
        checks.check_boolean(enabled, what="enabled")
        known = await self._store.enable_cron(name, enabled)
        self._tell_scheduled(known.next_at)
        return known

    async def remove_cron(self, name: str) -> bool:
        return await self._store.remove_cron(schedule_checks.check_cron_name(name))

    # Dead letters

    async def dead_letters(self, where: DeadLetterFilter, *, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        checks.check_dead_letter_filter(where)
        checks.check_limit(limit, self._config)
        checks.check_integer(offset, what="offset", low=0)
        return await self._store.dead_letters(where, limit=limit, offset=offset)

    async def dead_letter(self, dead_letter_id: int) -> DeadLetter:
        checks.check_integer(dead_letter_id, what="dead letter id", low=1)
        return await self._store.dead_letter(dead_letter_id)

    async def redrive(self, where: DeadLetterFilter, *, limit: int = 1000) -> int:
        checks.check_dead_letter_filter(where)
        checks.check_limit(limit, self._config)
        return await self._store.redrive(where, limit=limit)

    async def redrive_queue(self, queue: str, *, limit: int = 1000) -> int:
        checks.check_queue(queue)
        checks.check_limit(limit, self._config)
        return await self._store.redrive_queue(queue, limit=limit)

    async def purge(self, where: DeadLetterFilter) -> int:
        checks.check_dead_letter_filter(where)
        return await self._store.purge(where)

    # Operations

    async def leases(
        self, *, queue: str | None = None, expiring_within: timedelta | None = None, limit: int = 1000
    ) -> list[LeaseInfo]:
        checks.check_names(queue=queue)
        if expiring_within is not None:
            checks.check_duration(expiring_within, what="expiring_within")
        checks.check_limit(limit, self._config)
        return await self._store.leases(queue=queue, expiring_within=expiring_within, limit=limit)

    async def utilisation(self, *, queue: str | None = None, exact: bool = False) -> list[Utilisation]:
        checks.check_names(queue=queue)
        return await self._store.utilisation(queue=queue, exact=exact)

    async def verify(self, *, queue: str | None = None) -> list[Problem]:
        checks.check_names(queue=queue)
        return await self._store.verify(queue=queue)

    async def repair(self, *, queue: str | None = None) -> list[Problem]:
        checks.check_names(queue=queue)
        mended = await self._store.repair(queue=queue)
        self._tell_stirred(queue)
        return mended

    async def maintenance_mode(self) -> MaintenanceMode:
        """Whether pushes are buffered, and pops find nothing; and what is buffered on this machine."""
        return await self._spooling.mode()

    async def set_maintenance_mode(self, *, push: bool | None = None, pop: bool | None = None) -> MaintenanceMode:
        """Let all servers on the store buffer pushes, or drain what they have; and let pops find nothing, or go on.
        None leaves it as it is."""
        for what, given in (("push", push), ("pop", pop)):
            if given is not None:
                checks.check_boolean(given, what=what)
        return await self._spooling.set_mode(push=push, pop=pop)

    async def retry_rejected(self) -> int:
        """Push what the database had refused, and was set aside on this machine; returns how many messages. Raises what
        the database says to what it refuses again, after the rest was pushed."""
        return await self._spooling.retry_rejected()

    async def accept_buffer_loss(self) -> int:
        """Push what is buffered on this machine although the database has lost what was pushed from here before, and
        this machine does not have it any more; returns how many bytes are lost."""
        return await self._spooling.accept_loss()

    # Maintenance: what the duties in `engine/maintenance` have done

    async def sample(self) -> int:
        """Take a sample of every queue now; the walks over large queues go as far as time allows."""
        return await self._store.sample(seconds_max=self._config.samples_seconds_max)

    async def database_stats(self) -> DatabaseStats:
        return await self._store.database_stats()

    async def duties(self) -> list[DutyInfo]:
        return await self._store.duties()

    async def samples(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Sample | None = None,
        limit: int = 1000,
    ) -> list[Sample]:
        checks.check_names(queue=queue)
        checks.check_period(from_at, to_at)
        if after is not None:
            checks.check_kind(after, Sample)
        checks.check_limit(limit, self._config)
        return await self._store.samples(queue=queue, from_at=from_at, to_at=to_at, after=after, limit=limit)

    async def sample_spans(
        self,
        *,
        seconds: int,
        from_at: datetime,
        to_at: datetime,
        queue: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
    ) -> list[SampleSpan]:
        checks.check_integer(seconds, what="seconds", low=1, high=SECONDS_MAX)
        check_time(from_at, what="from_at")
        check_time(to_at, what="to_at")
        checks.check_names(queue=queue)
        checks.check_labels(namespace=namespace, task=task)
        return await self._store.sample_spans(
            seconds=seconds, from_at=from_at, to_at=to_at, queue=queue, namespace=namespace, task=task
        )

    async def removals(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Removal | None = None,
        limit: int = 1000,
    ) -> list[Removal]:
        checks.check_names(queue=queue)
        checks.check_period(from_at, to_at)
        if after is not None:
            checks.check_kind(after, Removal)
        checks.check_limit(limit, self._config)
        return await self._store.removals(queue=queue, from_at=from_at, to_at=to_at, after=after, limit=limit)
