"""The verbs of the contract over `State`.

No verb awaits anything, so each is atomic among the tasks of its event loop; what a verb decides it decides
before it changes anything, so one that raises has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec

from lockstep.core.applying import Applied, ApplyLimits
from lockstep.core.buckets import SampleSpan
from lockstep.core.crons import Cron, NewCron
from lockstep.core.maintenance import (
    DutyClaim,
    DutyInfo,
    Place,
    Pruned,
    PruneKind,
    Removal,
    Sample,
    Verified,
)
from lockstep.core.messages import Batch, Message, NewSchedule, PushResult, Receipt
from lockstep.core.names import QUEUE_MODE
from lockstep.core.operations import (
    NewOperation,
    OperationCounts,
    OperationInfo,
    OperationKind,
    OperationPage,
    OperationStatus,
    Outcome,
)
from lockstep.core.outage import Drained, System
from lockstep.core.overview import LabelInfo, Overview
from lockstep.core.policy import GroupMode, QueueOptions, changed_options
from lockstep.core.records import (
    Ack,
    AckOutcome,
    Arrival,
    Awaited,
    ClearScope,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPage,
    Depth,
    FirstPollLimits,
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
    arrivals_of,
    refuse_lost,
)
from lockstep.core.schedules import Promoted, Scheduled, ScheduleFilter, ScheduleName, SchedulePage, Timing
from lockstep.core.statistics import DatabaseStats, StoreCounts
from lockstep.core.streams import (
    NewStreamQuery,
    StateFilter,
    StateRow,
    StreamCycle,
    StreamCycleResult,
    StreamQuery,
)
from lockstep.core.traces import NamedTracePage, NewTraceEvent, TraceEvent, TraceNamePage
from lockstep.errors import SparkStreamNotFound
from lockstep.storage.memory import (
    ack,
    dead_letters,
    dead_queue,
    groups,
    maintenance,
    message_admin,
    messages,
    operation_queue,
    operations,
    overview,
    pop,
    push,
    queues,
    schedules,
    streams,
    traces,
)
from lockstep.storage.memory.first_polls import FirstPolls, note_all
from lockstep.storage.memory.state import State


def _utc_now() -> datetime:
    return datetime.now(UTC)


class MemoryStore:
    """A store that lives and dies with its process."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime] | None = None,
        timing: Timing | None = None,
        first_polls: FirstPollLimits | None = None,
    ) -> None:
        self._now = clock or _utc_now
        self._state = State()
        self._state.timing = timing or Timing()
        self._first_polls = FirstPolls(first_polls or FirstPollLimits())
        self._books = maintenance.Books()
        self._operations = operation_queue.Operations()
        self._system = System(id=uuid4())
        self._spools: dict[UUID, tuple[int, int | None]] = {}
        """Up to where each is drained."""
        self._hear: Callable[[str | None, Arrival], None] | None = None

    @contextmanager
    def _deaths(self) -> Iterator[datetime]:
        """For calls in which messages may die: what did is pushed to the dead queues at the end."""
        now = self._now()
        yield now
        self._tell(dead_queue.forward(self._state, now))

    def _tell(self, batches: Sequence[Batch]) -> None:
        """Tell who waits what was pushed without a producer that would."""
        if self._hear is not None:
            for queue, arrival in arrivals_of(batches).items():
                self._hear(queue, arrival)

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do: a store that is opened again still has its messages."""

    async def ping(self) -> None:
        """Always there."""

    async def ready(self) -> None:
        """Always."""

    async def listen(self, hear: Callable[[str | None, Arrival], None], *, waiting: Callable[[], bool]) -> None:  # noqa: ARG002
        """No other process can reach this store, so there is nothing to hear but what it pushes of its own accord."""
        self._hear = hear

    def expect_signals(self) -> None:
        """There is nobody to tell."""

    def announce(self, arrivals: Mapping[str, Arrival]) -> None:
        """There is nobody to tell."""

    def watch(self, *, there: Callable[[bool], None], changed: Callable[[], None]) -> None:
        """It is never away, and no other process can change it."""

    # Servers that buffer pushes

    async def system(self) -> System:
        return self._system

    async def set_maintenance_mode(self, *, push: bool | None = None, pop: bool | None = None) -> System:
        given = {"push_maintenance": push, "pop_maintenance": pop}
        changes = {name: mode for name, mode in given.items() if mode is not None}
        self._system = msgspec.structs.replace(self._system, **changes)
        return self._system

    async def drain(
        self, spool: UUID, batches: Sequence[Batch], *, start: int, end: int, set_aside: bool = False
    ) -> Drained:
        before, set_aside_from = self._spools.get(spool, (0, None))
        if before != start:
            return Drained(before, set_aside_from=set_aside_from)
        pushed = await self.push(batches) if batches else None
        if before < end:
            before, set_aside_from = end, start if set_aside else set_aside_from
        self._spools[spool] = before, set_aside_from
        return Drained(before, pushed, set_aside_from)

    # Queues and partitions

    async def configure(
        self, queue: str, options: QueueOptions, *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        now = self._now()
        dead_queue.check_dead_queue(self._state, queue, options)
        if options.group_mode == "shared":  # a configuration that does not say it means ordered
            queues.check_group_mode(self._state, queue, options.group_mode)
        configured = queues.configure(self._state, queue, options, namespace=namespace, task=task, now=now)
        return queues.queue_info(configured, now)

    async def update_queue(
        self, queue: str, changes: Mapping[str, Any], *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        options = changed_options(self._state.queue(queue).options, changes)
        if "group_mode" in changes:
            queues.check_group_mode(self._state, queue, options.group_mode)
        return await self.configure(queue, options, namespace=namespace, task=task)

    async def delete_queue(self, queue: str) -> bool:
        dead_queue.check_unused(self._state, queue)
        return queues.delete_queue(self._state, queue)

    async def clear(self, queue: str, *, partition: str | None = None, scope: ClearScope = "all") -> int:
        return queues.clear(self._state, queue, partition=partition, scope=scope, now=self._now())

    async def queues(
        self,
        *,
        namespace: str | None = None,
        task: str | None = None,
        after: str | None = None,
        from_name: str | None = None,
        limit: int = 100,
        exact: bool = False,  # noqa: ARG002
    ) -> list[QueueInfo]:
        return queues.queues(
            self._state,
            namespace=namespace,
            task=task,
            after=after,
            from_name=from_name,
            limit=limit,
            now=self._now(),
        )

    async def queue(self, queue: str, *, exact: bool = False) -> QueueInfo:  # noqa: ARG002
        return queues.queue_info(self._state.queue(queue), self._now())

    async def partitions(
        self, queue: str, *, after: str | None = None, prefix: str | None = None, limit: int = 100
    ) -> list[PartitionInfo]:
        return queues.partitions(self._state, queue, after=after, prefix=prefix or "", limit=limit, now=self._now())

    async def partition(self, queue: str, partition: str) -> PartitionInfo:
        return queues.partition_info(self._state.queue(queue).partition(partition), self._now())

    async def stats(self, queue: str, *, after: str | None = None, limit: int = 100) -> list[PartitionStats]:
        return queues.stats(self._state, queue, after=after, limit=limit, now=self._now())

    async def balanced(self, queue: str) -> int:
        return len(queues.balance(self._state, queue))

    async def balance(self, queue: str) -> list[int]:
        return queues.balance(self._state, queue)

    # Messages in and out

    async def push(self, batches: Sequence[Batch], *, lock_seconds: float | None = None) -> PushResult:  # noqa: ARG002
        return push.push(self._state, batches, self._now())

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]:
        pop.check_modes(self._state, requests)
        with self._deaths() as now:
            note_all(self._state, self._first_polls, requests, now)
            return [pop.pop(self._state, request, now) for request in requests]

    async def has_pending(self, requests: Sequence[PendingRequest]) -> list[bool]:
        return [seconds == 0 for seconds in await self.due_in([request.awaited() for request in requests], within=0)]

    async def due_in(self, awaited: Sequence[Awaited], *, within: float) -> list[float | None]:
        now = self._now()
        return [pop.due_in(self._state, one, within=within, now=now) for one in awaited]

    async def ack(self, acks: Sequence[Ack], *, lock_seconds: float | None = None) -> list[AckOutcome]:  # noqa: ARG002
        with self._deaths() as now:
            return ack.ack(self._state, acks, now)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        return pop.renew(self._state, renewals, self._now())

    async def transaction(
        self, acks: Sequence[Ack], batches: Sequence[Batch], *, required_leases: Sequence[str] = ()
    ) -> TransactionResult:
        with self._deaths() as now:
            refuse_lost([lease for lease in required_leases if not pop.is_live(self._state, lease, now)])
            return ack.transaction(self._state, acks, batches, now)

    # Requests that wait to be applied

    async def queue_operations(self, operations: Sequence[NewOperation]) -> list[str]:
        return operation_queue.queue_operations(self._state, self._operations, operations, self._now())

    async def apply_operations(self, kind: OperationKind, *, by: str, limits: ApplyLimits) -> Applied:
        with self._deaths() as now:
            return operation_queue.apply_operations(self._state, self._operations, kind, by=by, limits=limits, now=now)

    async def operations(
        self,
        *,
        status: OperationStatus | None = None,
        queue: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> OperationPage:
        return operation_queue.operations_page(self._operations, status=status, queue=queue, cursor=cursor, limit=limit)

    async def operation(self, operation_id: str) -> OperationInfo:
        return operation_queue.operation(self._operations, operation_id)

    async def operation_outcomes(self, bundles: Sequence[UUID]) -> dict[UUID, list[Outcome | None]]:
        return operation_queue.operation_outcomes(self._operations, bundles)

    async def operation_counts(self) -> OperationCounts:
        return operation_queue.operation_counts(self._operations)

    async def retry_operation(self, operation_id: str) -> OperationInfo:
        return operation_queue.retry_operation(self._state, self._operations, operation_id, self._now())

    async def prune_operations(self, seconds: float, *, failed_seconds: float, limit: int) -> int:
        return operation_queue.prune_operations(
            self._operations, seconds, failed_seconds=failed_seconds, limit=limit, now=self._now()
        )

    # Groups

    async def subscribe(
        self, queue: str, group: str, subscription: Subscription, *, mode: GroupMode | None = None
    ) -> GroupInfo:
        now = self._now()
        subscribed = self._state.group(self._state.queue(queue), group, subscription, now, mode=mode)
        return groups.group_info(subscribed, now)

    async def set_subscription(self, group: str, subscription: Subscription, *, queue: str | None = None) -> int:
        return groups.set_subscription(self._state, group, subscription, queue=queue, now=self._now())

    async def seek(self, queue: str, group: str, position: Position, *, partition: str | None = None) -> int:
        return groups.seek(self._state, queue, group, position, partition=partition, now=self._now())

    async def delete_group(self, group: str, *, queue: str | None = None, forget_subscription: bool = True) -> int:
        removed = groups.delete_group(self._state, group, queue=queue, forget_subscription=forget_subscription)
        if forget_subscription:
            self._first_polls.forget(group, queue)
        return removed

    async def groups(
        self,
        *,
        queue: str | None = None,
        group: str | None = None,
        exact: bool = False,  # noqa: ARG002
    ) -> list[GroupInfo]:
        return groups.groups(self._state, queue=queue, group=group, now=self._now())

    async def lag(
        self,
        queue: str,
        *,
        group: str | None = None,
        partition: str | None = None,
        after_partition_id: int = 0,
        limit: int = 1000,
    ) -> list[PartitionLag]:
        return groups.lag(
            self._state,
            queue,
            group=group,
            partition=partition,
            after_partition_id=after_partition_id,
            limit=limit,
            now=self._now(),
        )

    async def spark_streams(self, *, queue: str | None = None) -> list[SparkStreamInfo]:
        if queue is not None:
            self._state.queue(queue)
        return []

    async def forget_spark_stream(self, stream_id: str) -> int:
        raise SparkStreamNotFound(f"there is no Spark stream {stream_id!r}")

    async def accept_spark_stream(self, stream_id: str) -> int:
        raise SparkStreamNotFound(f"there is no Spark stream {stream_id!r}")

    async def depth(self, queue: str, group: str, *, exact: bool = False) -> Depth:  # noqa: ARG002
        return groups.depth(self._state, queue, group, self._now())

    # Looking at messages

    async def messages(
        self, where: MessageFilter, *, newest_first: bool = False, cursor: str | None = None, limit: int = 100
    ) -> MessagePage:
        return messages.messages(
            self._state, where, newest_first=newest_first, cursor=cursor, limit=limit, now=self._now()
        )

    async def message(self, identity: str, *, partition_id: int | None = None) -> MessageView:
        return messages.message(self._state, identity, partition_id=partition_id, now=self._now())

    async def trace(self, trace_id: str, *, limit: int = 1000) -> list[Message]:
        return messages.trace(self._state, trace_id, limit=limit)

    async def namespaces(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:  # noqa: ARG002
        return overview.labels(self._state, "namespace", after=after, limit=limit, now=self._now())

    async def tasks(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:  # noqa: ARG002
        return overview.labels(self._state, "task", after=after, limit=limit, now=self._now())

    async def overview(self, *, exact: bool = False) -> Overview:  # noqa: ARG002
        return overview.overview(self._state, self._now())

    # Single messages

    async def remove_message(self, partition_id: int, transaction_id: str) -> None:
        message_admin.remove_message(self._state, partition_id, transaction_id, self._now())

    async def retry_message(self, partition_id: int, transaction_id: str) -> Receipt:
        return message_admin.retry_message(self._state, partition_id, transaction_id, self._now())

    async def bury_message(
        self, partition_id: int, transaction_id: str, *, group: str = QUEUE_MODE, error: str | None = None
    ) -> int:
        with self._deaths() as now:
            return message_admin.bury_message(
                self._state, partition_id, transaction_id, group=group, error=error, now=now
            )

    # Trace events

    async def record_trace(self, event: NewTraceEvent) -> int:
        return traces.record_trace(self._state, event, self._now())

    async def traces_of_message(self, partition_id: int, transaction_id: str, *, limit: int = 1000) -> list[TraceEvent]:
        return traces.traces_of_message(self._state, partition_id, transaction_id, limit=limit)

    async def traces_by_name(self, name: str, *, limit: int = 100, offset: int = 0) -> NamedTracePage:
        return traces.traces_by_name(self._state, name, limit=limit, offset=offset)

    async def trace_names(self, *, limit: int = 100, offset: int = 0) -> TraceNamePage:
        return traces.trace_names(self._state, limit=limit, offset=offset)

    # Stream queries

    async def register_stream_query(self, query: NewStreamQuery) -> StreamQuery:
        return streams.register_stream_query(self._state, query)

    async def stream_state(self, where: StateFilter, *, limit: int = 1000) -> list[StateRow]:
        return streams.stream_state(self._state, where, limit=limit)

    async def stream_cycle(self, cycle: StreamCycle, batches: Sequence[Batch]) -> StreamCycleResult:
        with self._deaths() as now:
            return streams.stream_cycle(self._state, cycle, batches, now)

    # Schedules

    async def schedules(self, where: ScheduleFilter, *, cursor: str | None = None, limit: int = 100) -> SchedulePage:
        return schedules.schedules(self._state, where, cursor=cursor, limit=limit)

    async def schedule(self, which: ScheduleName) -> Scheduled:
        return schedules.schedule(self._state, which)

    async def cancel_schedule(self, which: ScheduleName) -> bool:
        return schedules.cancel_schedule(self._state, which)

    async def reschedule(self, which: ScheduleName, schedule: NewSchedule) -> Scheduled:
        return schedules.reschedule(self._state, which, schedule, self._now())

    async def promote(self, *, limit: int) -> Promoted:
        return schedules.promote(self._state, limit=limit, now=self._now())

    async def set_cron(self, cron: NewCron) -> Cron:
        return schedules.set_cron(self._state, cron, self._now())

    async def crons(self, *, after: str | None = None, limit: int = 100) -> list[Cron]:
        return schedules.crons(self._state, after=after, limit=limit)

    async def cron(self, name: str) -> Cron:
        return schedules.cron(self._state, name)

    async def enable_cron(self, name: str, enabled: bool) -> Cron:
        return schedules.enable_cron(self._state, name, enabled, self._now())

    async def remove_cron(self, name: str) -> bool:
        return schedules.remove_cron(self._state, name)

    # Dead letters

    async def dead_letters(self, where: DeadLetterFilter, *, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        return dead_letters.dead_letters(self._state, where, limit=limit, offset=offset)

    async def dead_letter(self, dead_letter_id: int) -> DeadLetter:
        return dead_letters.dead_letter(self._state, dead_letter_id)

    async def redrive(self, where: DeadLetterFilter, *, limit: int = 1000, done: bool | None = None) -> int:
        batches = dead_letters.redrive(self._state, where, limit=limit, done=done, now=self._now())
        self._tell(batches)
        return len(batches)

    async def redrive_queue(self, queue: str, *, limit: int = 1000) -> int:
        batches = dead_queue.redrive_queue(self._state, queue, limit=limit, now=self._now())
        self._tell(batches)
        return len(batches)

    async def purge(self, where: DeadLetterFilter) -> int:
        return dead_letters.purge(self._state, where)

    # The store itself

    def counts(self) -> StoreCounts:
        return StoreCounts()

    async def database_stats(self) -> DatabaseStats:
        return DatabaseStats()

    # Operations

    async def leases(
        self, *, queue: str | None = None, expiring_within: timedelta | None = None, limit: int = 1000
    ) -> list[LeaseInfo]:
        return operations.leases(
            self._state, queue=queue, expiring_within=expiring_within, limit=limit, now=self._now()
        )

    async def utilisation(self, *, queue: str | None = None, exact: bool = False) -> list[Utilisation]:  # noqa: ARG002
        return operations.utilisation(self._state, queue=queue, now=self._now())

    async def verify(self, *, queue: str | None = None) -> list[Problem]:
        return operations.verify(self._state, queue=queue)

    async def repair(self, *, queue: str | None = None) -> list[Problem]:
        return operations.repair(self._state, queue=queue, now=self._now())

    # Maintenance

    async def prune(self, kind: PruneKind, *, after: Place | None = None, limit: int) -> Pruned:
        with self._deaths() as now:
            return maintenance.prune(self._state, self._books, kind, after=after, limit=limit, now=now)

    async def prune_partitions(self, idle_seconds: float, *, after: Place | None = None, limit: int) -> Pruned:
        now = self._now()
        return maintenance.prune_partitions(self._state, self._books, idle_seconds, after=after, limit=limit, now=now)

    async def prune_queues(self, *, after: Place | None = None) -> Pruned:  # noqa: ARG002
        """A queue is deleted at once here."""
        return Pruned()

    async def prune_groups(self, *, after: Place | None = None) -> Pruned:  # noqa: ARG002
        """A group is made, moved and deleted at once here."""
        return Pruned()

    async def prune_history(self, seconds: float, *, limit: int) -> int:
        return maintenance.prune_history(self._state, self._books, seconds, limit=limit, now=self._now())

    async def claim_duty(self, name: str, *, interval_seconds: float, hold_seconds: float, by: str) -> DutyClaim:
        return maintenance.claim_duty(
            self._books, name, interval_seconds=interval_seconds, hold_seconds=hold_seconds, by=by, now=self._now()
        )

    async def finish_duty(
        self,
        name: str,
        *,
        by: str,
        effect: dict[str, Any] | None = None,
        error: str | None = None,
        more: bool = False,
    ) -> bool:
        now = self._now()
        return maintenance.finish_duty(self._books, name, by=by, effect=effect, error=error, more=more, now=now)

    async def duties(self) -> list[DutyInfo]:
        return [self._books.duties[name] for name in sorted(self._books.duties)]

    async def sample(self, *, seconds_max: float | None = None) -> int:  # noqa: ARG002
        return maintenance.sample(self._state, self._books, self._now())

    async def samples(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Sample | None = None,
        limit: int = 1000,
    ) -> list[Sample]:
        return maintenance.samples(self._books, queue=queue, from_at=from_at, to_at=to_at, after=after, limit=limit)

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
        samples = maintenance.samples(
            self._books, queue=queue, from_at=from_at, to_at=to_at, after=None, limit=len(self._books.samples)
        )
        return overview.sample_spans(self._state, samples, seconds=seconds, namespace=namespace, task=task)

    async def removals(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Removal | None = None,
        limit: int = 1000,
    ) -> list[Removal]:
        return maintenance.removals(self._books, queue=queue, from_at=from_at, to_at=to_at, after=after, limit=limit)

    async def verify_slice(self, *, after: Place | None = None, partitions: int) -> Verified:
        return maintenance.verify_slice(self._state, after=after, partitions=partitions)
