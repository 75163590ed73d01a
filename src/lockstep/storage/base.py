"""The contract of a store: the verbs of Lockstep over whatever keeps the messages.

Every store passes the same contract tests and agrees with the memory store, operation by operation. The rules
that a docstring here names are written down in `core/rules.py`.

What holds for every verb:
* Input was validated by the engine: names, sizes and ranges are right. What only the store can know (an
  unknown queue, a full queue, a lost lease) is the store's to check.
* A call that raises has changed nothing. Outcomes of single items are returned, not raised.
* Time is the store's clock: the database's own, or one that was set.
* A call is one transaction, except where it says that it works in slices; concurrent calls behave as if one came after
  the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

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
from lockstep.core.policy import GroupMode, QueueOptions
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
from lockstep.core.schedules import Promoted, Scheduled, ScheduleFilter, ScheduleName, SchedulePage
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


class Store(Protocol):
    """Where queues, partitions, messages and cursors live."""

    async def open(self) -> None:
        """Make ready for use: connect, migrate. Raises Unavailable or SchemaTooNew."""

    async def close(self) -> None:
        """Let go of everything. Safe to call twice."""

    async def ping(self) -> None:
        """Return if the store answers; raise Unavailable if it does not."""

    async def ready(self) -> None:
        """Return if the store answers and is as this process needs it: raise Unavailable, or SchemaTooNew if a newer
        version has migrated it meanwhile."""

    # Between processes

    async def listen(self, hear: Callable[[str | None, Arrival], None], *, waiting: Callable[[], bool]) -> None:
        """From now on call `hear` with a queue, and what came to it, for what other processes pushed, and for what no
        producer did: what died and was pushed to a dead queue, and what was redriven, by any process; with None when
        something may have been missed. A hint, not a promise: who waits must look from time to time, too.

        With 0 partitions and 0 messages nothing was pushed, but leases have ended; this is told only to a process
        whose `waiting` has said that somebody waits there. With 0 partitions and some messages, messages wait for
        their time, and who put them there does not promote them.

        A change of a queue that another process made is heard in the same way, and rules what this one does next.
        """

    def expect_signals(self) -> None:
        """The first of some polls begins to wait here: let others know soon. Returns at once."""

    def announce(self, arrivals: Mapping[str, Arrival]) -> None:
        """Tell those who listen in other processes what was pushed, by queue; to no partitions, if leases have ended
        there. Returns at once; many announcements travel together."""

    def watch(self, *, there: Callable[[bool], None], changed: Callable[[], None]) -> None:
        """From now on call `there` with False when the store turns out to be away, if it can be, which is at once if it
        is away already, and with True when it is back; and, while this process listens, `changed` when another one may
        have changed what `system` says."""

    # Servers that buffer pushes

    async def system(self) -> System:
        """What all servers on the store know together."""

    async def set_maintenance_mode(self, *, push: bool | None = None, pop: bool | None = None) -> System:
        """Say whether servers are to buffer pushes, and whether their pops are to find nothing; None leaves it."""

    async def drain(
        self, spool: UUID, batches: Sequence[Batch], *, start: int, end: int, set_aside: bool = False
    ) -> Drained:
        """Push what lies in a spool from one place to another, as `push` does, if it was not pushed before. That it is
        in the store from then on is remembered in the same transaction, so that a call may be repeated whatever became
        of it.

        If the spool was drained beyond `start` before, or not up to there, nothing is pushed or remembered, and the
        answer says up to where it is drained. Without batches the part has nothing to push, and is passed; with
        `set_aside`, because it is a record that the store refuses, and that is remembered, too. A spool that was never
        drained is drained up to 0."""

    # Queues and partitions

    async def configure(
        self, queue: str, options: QueueOptions, *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        """Create the queue, or replace its whole configuration; it has a partition `Default` then.

        Namespace and task of a new queue, where None, are the first two dot-separated pieces of its name; those
        of an existing queue, where None, stay. New options rule the next push, pop or ack; what due_at already
        says (a lease's deadline, a retry time) stays.

        A dead queue must exist, not be the queue itself, and have neither a dead queue nor a max_size of its own; and a
        queue that is one can get neither: else InvalidOption. With `partitions` the partitions `0`, `1`, … exist then.
        """

    async def update_queue(
        self, queue: str, changes: Mapping[str, Any], *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        """Change some options of a queue, by name; what is not given stays, whoever else changes something at the same
        time. Raises QueueNotFound, InvalidOption if the options together are not valid then."""

    async def delete_queue(self, queue: str) -> bool:
        """Remove the queue with all that belongs to it. False if there is none. Raises Conflict while it is the dead
        queue of another.

        From one moment on nobody finds it: its messages are not popped, what was leased of them is lost, what is pushed
        to its name goes to a new queue. What is stored goes after that in slices; where the call does not come to its
        end, or cannot go on, prune_queues removes what is left.
        """

    async def clear(self, queue: str, *, partition: str | None = None, scope: ClearScope = "all") -> int:
        """Remove stored messages of a queue or one partition; returns how many.

        `all`: every message; leases are dropped and every cursor is at the end. `unleased`: every message that is
        under no live lease of any group; the leases stay and can be acknowledged. Dedup entries, trace entries and
        dead letters of removed messages go with them. Seqs go on where they were: nothing is numbered twice.
        `scheduled`: only messages that wait for their time, which the others leave alone.
        Raises QueueNotFound, PartitionNotFound.

        It works in slices. With `all` the cursors are at the end first, some partitions at a time; then messages go,
        oldest first. Others see what is done so far, and so does who repeats a call that failed. What is pushed while
        it runs is either removed or delivered.
        """

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
        """Queues by name, those after the name `after`, and from `from_name` on, which itself is among them.

        The cost of this and of every other list of figures does not follow the number of partitions: the figures of
        large queues are those of the last walk over them, made by `sample`, and `figures_at` says when that began.
        With `exact` they are counted anew, which costs some microseconds for each partition and cursor.
        """

    async def queue(self, queue: str, *, exact: bool = False) -> QueueInfo:
        """One queue. Raises QueueNotFound."""

    async def partitions(
        self, queue: str, *, after: str | None = None, prefix: str | None = None, limit: int = 100
    ) -> list[PartitionInfo]:
        """A queue's partitions by name: those after the name `after`, and whose names begin with `prefix`. Raises
        QueueNotFound."""

    async def partition(self, queue: str, partition: str) -> PartitionInfo:
        """One partition. Raises QueueNotFound, PartitionNotFound."""

    async def stats(self, queue: str, *, after: str | None = None, limit: int = 100) -> list[PartitionStats]:
        """What lies in a queue's partitions now, by name, those after the name `after`: exact. The cost follows what a
        push stored in one partition, for all that is not done, and the messages that wait; no message is read. Raises
        QueueNotFound."""

    async def balanced(self, queue: str) -> int:
        """How many numbered partitions a balanced queue has; 0 for a queue that is not balanced or does not exist. The
        store keeps the answer in memory until the queue changes."""

    async def balance(self, queue: str) -> list[int]:
        """How much is pending in each numbered partition of a balanced queue, for the group that is furthest behind;
        empty for a queue that is not balanced, which costs nothing, or does not exist."""

    # Messages in

    async def push(self, batches: Sequence[Batch], *, lock_seconds: float | None = None) -> PushResult:
        """Store the messages of all batches, in order, or none of them; queues and partitions appear as needed.

        Seqs are dense per partition and in commit order. A transaction id that the partition has seen, in this
        call or before, stores nothing; its receipt is a duplicate that names the first message. The receipts are
        in the order of the batches and of the messages in them; several batches may name the same partition. A call
        has at most ids.SEGMENT_MESSAGES_MAX messages, else TooLarge.

        A queue with a max_size holds at most that many pending messages (the lag of its furthest-behind group; all
        stored messages while it has no group), however many producers push at once. If the new messages of this
        call, duplicates not counted, would exceed it, the call raises QueueFull with details queue, depth, max_size
        and nothing of it is stored. Receipts of such a queue tell its depth and remaining capacity.

        A batch with a schedule whose time is at least the setting schedule_min_seconds ahead waits until then: its
        queue appears, but not its partition, and it does not count for a max_size. Its receipts have the status
        `scheduled`, a schedule id and the due time. If its key waits in the queue already, or its transaction id in the
        partition, nothing is stored, and the receipt is a duplicate that names the schedule that waits. Against stored
        messages its transaction id is compared when it is promoted.

        Whoever pushes to a partition holds it until its transaction ends, and others wait: for as long as
        `lock_seconds`, or the store's own limit, and then the call raises LockTimeout.

        While operations wait for one of its partitions, the call raises OperationPending, and nothing of it is stored;
        the detail `batches` has the indexes of those batches. So it is with the pushes of transactions and of stream
        cycles. What is promoted, redriven or sent to a dead queue has no producer whose order it could break, and goes
        before operations.
        """

    # Messages out

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]:
        """Lease and return what is due, for each request in turn.

        A request for a queue that does not exist finds nothing, creates nothing, and says so (`no_queue`); one for a
        partition that does not exist finds nothing. The first pop of a group on an existing queue creates the group,
        whatever it finds: a stored subscription wins, else the
        request's. Queue mode always starts from the first message. `all` begins with the first stored message,
        `new` with the first pushed after this call, `from` with the first created at or after the time; each for
        all partitions that exist; partitions that appear later are read from their first message.

        Among the due partitions those with the earliest due_at come first (then the lower partition id). They are
        claimed until `partitions` are claimed or `batch` messages are leased; a claimed partition gives what it has
        ahead, as far as it is visible (delay) and fits. Before a partition is claimed its cursor is put right:
        an expired lease is charged (`rules.expire`), messages that waited longer than max_wait are passed, what
        was removed is skipped; then due_at is computed anew, and only if it is still due is it claimed. A message that
        expired (`rules.is_expired`) is passed in the same way, with a dead letter where the queue's on_expired says so;
        a claim ends before one. Of a balanced queue the fullest partitions come first.

        A namespace and/or task request creates the group on all its queues, where it is new, and goes through them
        by priority, highest first, then by name, until `partitions` or `batch` is reached, all under one lease id.

        A new group is served as the request's mode says, else as its queue's group_mode. Of a shared group
        (`core/shared.py`) single messages are leased: first what is due to be delivered again, earliest first (due_at,
        partition id, seq), each range put right as a cursor is; then what is new, by partition as above. Others go on
        after it at once. `delay` and `window` hold for what is new. Raises GroupModeMismatch if the group is there in
        another mode than the request's, or a namespace or task has it in both; then no request of the call is served.

        auto_ack: the cursor moves over what is returned at once and no lease remains; so no attempt is counted.
        """

    async def has_pending(self, requests: Sequence[PendingRequest]) -> list[bool]:
        """Whether a pop now may find something. True for a group that does not exist yet on an existing queue.

        May be true a little too often (a cursor that only the next pop will put right), never falsely false.
        """

    async def due_in(self, awaited: Sequence[Awaited], *, within: float) -> list[float | None]:
        """In how many seconds a pop may find something: 0 where `has_pending` is true, else the time until the next
        retry, delay or end of a lease; None if nothing is due within so many seconds, as far as it is known now.

        A namespace and/or task stands for all its queues.
        """

    async def ack(self, acks: Sequence[Ack], *, lock_seconds: float | None = None) -> list[AckOutcome]:
        """End deliveries, each of `completed`, `failed`, `retry` or `dlq`; one outcome per ack, in order.

        The acks of one call for the same cursor are applied together, in seq order (`rules.settle`): commit of a
        prefix, clamp, fencing by lease, exhaustion by the queue's on_exhausted. An ack by lease alone stands for
        each partition of the lease: completed up to the end of what it leased, otherwise the head; with a seq (and
        partition_id where the lease has several) for that seq. A lease that is gone: lease_lost. A partition id
        that does not exist: unresolvable; a group that has no cursor there: so, too, unless a lease is named, which
        cannot be its own: lease_lost. An ack that stands for several partitions succeeds if all did, counts their
        messages, and names the first one's queue and partition.
        A transaction id is resolved as given by the producer, else as a message id. Dead letters are recorded with
        error, attempts and time; and, if the queue has a dead queue, pushed there in the same transaction, to the
        partition of the same name, with headers that say where they came from and why. So it is wherever one dies.

        In a shared group each message ends for itself, in no order, and nothing clamps (`shared.settle`). An ack by
        lease stands for all that the lease still holds, whatever its status; those of single messages come first. A
        message that another lease has, or no live one while a lease is named, or that was never handed out: lease_lost.

        An ack that leaves nothing ahead waits for those who push to the partition: for as long as `lock_seconds`, or
        the store's own limit, and then the call raises LockTimeout.
        """

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        """Move the deadline of live leases to `seconds` from now (default the queue's lease time); never earlier."""

    async def transaction(
        self, acks: Sequence[Ack], batches: Sequence[Batch], *, required_leases: Sequence[str] = ()
    ) -> TransactionResult:
        """Acks and then pushes, all or nothing.

        An ack without success (noop counts as success) raises TransactionRolledBack with details `outcomes` (the
        list of AckOutcome); a full queue raises QueueFull; nothing is applied then. Duplicates are no failure. A
        required lease that is not live when the transaction begins is as an ack that failed, with no outcomes; the
        others are held until it has ended.
        """

    # Requests that wait to be applied (`core/operations.py`)

    async def queue_operations(self, operations: Sequence[NewOperation]) -> list[str]:
        """Keep requests, all pushes or all acks, to be applied later, in order; returns their ids, in order.

        Queues and partitions of pushes appear as they would with the push. A push that surely would fail for want of
        a key raises EncryptionUnavailable.
        """

    async def apply_operations(self, kind: OperationKind, *, by: str, limits: ApplyLimits) -> Applied:
        """Apply operations that wait, oldest first, as far as the limits allow; `by` says who does, for people.

        Any number of processes may do so at once. Each operation is applied once, and marked in the transaction that
        applies it: a process that is killed has applied none of those it has claimed. A push is applied after all older
        ones to the same partitions; acks, after all older acks. One that fails fails alone: it is kept with its error.
        One whose queue is full, or whose partition is held by others, is left to be tried again after a while, and so
        are those after it in its partitions; a full queue fails it when the retries are used up.
        """

    async def operations(
        self,
        *,
        status: OperationStatus | None = None,
        queue: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> OperationPage:
        """A page of operations, oldest first; with a queue those that push to it. It may be short, even empty, and
        still have a next one. Raises InvalidRequest for a cursor that is none."""

    async def operation(self, operation_id: str) -> OperationInfo:
        """One operation. Raises OperationNotFound, also once it is done and has been pruned; InvalidRequest."""

    async def operation_outcomes(self, bundles: Sequence[UUID]) -> dict[UUID, list[Outcome | None]]:
        """By bundle, what became of its operations, as far as it is known; a bundle of which nothing is known may be
        missing."""

    async def operation_counts(self) -> OperationCounts:
        """How much waits, and how much has failed. The cost follows the bundles that wait."""

    async def retry_operation(self, operation_id: str) -> OperationInfo:
        """Let an operation that failed wait again, in its old place. Raises OperationNotFound, Conflict."""

    async def prune_operations(self, seconds: float, *, failed_seconds: float, limit: int) -> int:
        """Remove bundles that ended so many seconds ago, at most `limit`; returns how many. One in which an operation
        failed is kept for `failed_seconds`, if that is longer."""

    # Groups

    async def subscribe(
        self, queue: str, group: str, subscription: Subscription, *, mode: GroupMode | None = None
    ) -> GroupInfo:
        """Create the group on the queue as its first pop would, or leave it as it is. Raises QueueNotFound,
        GroupModeMismatch.

        The group begins at one moment in all partitions. `new` shows everything whose push began after that, and
        nothing that was committed before; a push in between may be either. How many partitions there are does not
        matter: what the store prepares for each of them it may do later (prune_groups).
        """

    async def set_subscription(self, group: str, subscription: Subscription, *, queue: str | None = None) -> int:
        """Store where the group begins when it next starts afresh; on one queue, or all on which it exists or has
        a stored subscription. Returns on how many. Raises QueueNotFound, GroupNotFound."""

    async def seek(self, queue: str, group: str, position: Position, *, partition: str | None = None) -> int:
        """Move the group's cursors on a queue or one partition; returns how many cursors there are.

        start: before the first stored message. end: after the last. time: after the last message created at or
        before it. seq: before that seq, and not before the first stored message nor after the last. current: where
        it is. Leases are dropped, attempts start again, a stopped partition goes on. Of a shared group what was in
        flight is forgotten, and with current delivered again at once. Raises QueueNotFound, GroupNotFound,
        PartitionNotFound.

        All partitions move at one moment: a pop that begins after that gets nothing from where the group was, and the
        leases from before are lost. An ack or a transaction that is on its way may still succeed; it counts as before
        the move. Only `current` works in slices; if it fails half-way, it is repeated.
        """

    async def delete_group(self, group: str, *, queue: str | None = None, forget_subscription: bool = True) -> int:
        """Remove the group's cursors, on one queue or all, so that its next pop starts afresh; with
        forget_subscription also where it begins. Returns how many cursors it had. Raises QueueNotFound, GroupNotFound.

        The group is gone at one moment. What the store has left of it prune_groups removes.
        """

    async def groups(
        self, *, queue: str | None = None, group: str | None = None, exact: bool = False
    ) -> list[GroupInfo]:
        """Groups by queue name, then group name. Raises QueueNotFound."""

    async def lag(
        self,
        queue: str,
        *,
        group: str | None = None,
        partition: str | None = None,
        after_partition_id: int = 0,
        limit: int = 1000,
    ) -> list[PartitionLag]:
        """Cursors with their exact lag, by partition id, then group name. Of a shared group: the lag is what is new and
        what is in flight, `acked` up to where all is done, `due_at` the next time at which a pop may find something,
        `attempts` those of the first message in flight. Raises QueueNotFound, GroupNotFound, PartitionNotFound."""

    async def spark_streams(self, *, queue: str | None = None) -> list[SparkStreamInfo]:
        """Spark's streams that told of their position, by queue, then name, with their lag. The memory store has none.
        Raises QueueNotFound."""

    async def forget_spark_stream(self, stream_id: str) -> int:
        """Forget the position of a Spark stream, so that it holds back nothing from retention; returns on how many
        queues. Raises SparkStreamNotFound."""

    async def accept_spark_stream(self, stream_id: str) -> int:
        """Let a Spark stream go on whose checkpoint is ahead of the database, after a failover or a restore: from the
        position that it last published here. Returns on how many queues. Raises SparkStreamNotFound."""

    async def depth(self, queue: str, group: str, *, exact: bool = False) -> Depth:
        """Sums of the lag; see `queues`. For queue mode that was never popped: all that is stored. Raises
        QueueNotFound, GroupNotFound."""

    # Looking at messages

    async def messages(
        self, where: MessageFilter, *, newest_first: bool = False, cursor: str | None = None, limit: int = 100
    ) -> MessagePage:
        """A page of stored messages: by partition id and seq; with `newest_first`, the message stored last comes first,
        and in each partition seqs fall. Without a queue it goes over the partitions of all queues. Raises
        QueueNotFound, PartitionNotFound, InvalidRequest for a cursor that is none, or is one of the other order."""

    async def message(self, identity: str, *, partition_id: int | None = None) -> MessageView:
        """One message by its id; or, with a partition id, by its transaction id or its id. Raises MessageNotFound."""

    async def trace(self, trace_id: str, *, limit: int = 1000) -> list[Message]:
        """All messages of a trace over all queues, by created_at, then id."""

    async def namespaces(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:
        """The namespaces of all queues by name, those after the name `after`. See `queues` for what
        the sums cost."""

    async def tasks(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:
        """The tasks of all queues, likewise."""

    async def overview(self, *, exact: bool = False) -> Overview:
        """Sums over the whole store, and how far behind its cursors are."""

    # Single messages. Each is named by a partition id and a transaction id, or its own id, and raises MessageNotFound.

    async def remove_message(self, partition_id: int, transaction_id: str) -> None:
        """Remove a message for everybody, with its dedup entry, trace entries, trace events and dead letters.

        Its seq stays unused, as after a clear; a group whose head it was starts anew with what is left. Raises Conflict
        if it is under a live lease of any group.
        """

    async def retry_message(self, partition_id: int, transaction_id: str) -> Receipt:
        """Push a message to the end of its partition again, as a redrive does, once, and remove its dead letters, with
        their copies in a dead queue.

        It must be a dead letter of some group, or completed by every group: raises Conflict if it is still to be
        delivered, or one of the copies is under a live lease. Raises QueueFull.
        """

    async def bury_message(
        self, partition_id: int, transaction_id: str, *, group: str = QUEUE_MODE, error: str | None = None
    ) -> int:
        """Give a message up for a group (`rules.bury`): it becomes a dead letter, whose id is returned, and the cursor
        passes it. A stopped partition goes on.

        It must be the next one of that group, because the cursor would pass all before it, too; of a shared group the
        next new one, or any in flight. Raises Conflict if it is not, or is done, or the partition (of a shared group:
        the message) is under a live lease of the group; GroupNotFound.
        """

    # Trace events

    async def record_trace(self, event: NewTraceEvent) -> int:
        """Keep what is told about a stored message, as long as the message is; returns its id. Raises
        MessageNotFound."""

    async def traces_of_message(self, partition_id: int, transaction_id: str, *, limit: int = 1000) -> list[TraceEvent]:
        """What was told about a message, oldest first; nothing if there is no such message."""

    async def traces_by_name(self, name: str, *, limit: int = 100, offset: int = 0) -> NamedTracePage:
        """Trace events with this name over all queues, newest first, with their messages; and how many there are."""

    async def trace_names(self, *, limit: int = 100, offset: int = 0) -> TraceNamePage:
        """The names that trace events have, the one seen last first (then by name), and how many there are. The cost
        follows the number of events with names."""

    # Stream queries

    async def register_stream_query(self, query: NewStreamQuery) -> StreamQuery:
        """Find a stream query by its name, or create it. Its queues need not exist.

        One that is known with another config hash or source queue raises StreamConfigMismatch, and is left as it is;
        with `reset` it takes the new configuration and its state is removed. A new sink queue is always taken.
        """

    async def stream_state(self, where: StateFilter, *, limit: int = 1000) -> list[StateRow]:
        """The state of a query on one partition, by key. Raises StreamQueryNotFound."""

    async def stream_cycle(self, cycle: StreamCycle, batches: Sequence[Batch]) -> StreamCycleResult:
        """One step of a query on one partition: changes of its state, an ack, and pushes, all or nothing. Cycles of the
        same query and partition come one after the other.

        A completed ack ends the live lease of the group on the partition even if it is not all of it; without
        release_lease it keeps it even if it is (`rules.keep_lease`): then the lease has nothing left, and still nobody
        else pops the partition. An ack without success raises TransactionRolledBack with details `outcomes`, and so
        does a noop: a cycle that is sent twice must not be applied twice. Raises QueueFull, StreamQueryNotFound,
        PartitionNotFound. The state goes with its partition.
        """

    # Messages that wait for their time

    async def schedules(self, where: ScheduleFilter, *, cursor: str | None = None, limit: int = 100) -> SchedulePage:
        """A page of waiting messages: by due time, then id. Raises QueueNotFound, InvalidRequest for a cursor that is
        none."""

    async def schedule(self, which: ScheduleName) -> Scheduled:
        """One waiting message. Raises ScheduleNotFound, also once it is promoted."""

    async def cancel_schedule(self, which: ScheduleName) -> bool:
        """Remove a waiting message. False if none waits: then it was promoted, or cancelled, before, or never was."""

    async def reschedule(self, which: ScheduleName, schedule: NewSchedule) -> Scheduled:
        """Give a waiting message another due time; its key stays. Raises ScheduleNotFound, also once it is promoted."""

    async def promote(self, *, limit: int) -> Promoted:
        """Push what is due, of waiting and of recurring messages; any number of processes may do so at once.

        Waiting messages go queue by queue, the older queue first, in due order (then by id), at most `limit` of each in
        a call, each queue a transaction of its own: a message is pushed exactly once, and those of one partition get
        their seqs in due order. One whose transaction id is stored already is dropped. Of a full queue those are pushed
        that fit; the others stay due, as does everything that cannot be read here. When nothing is due it costs a probe
        of an index.
        """

    async def set_cron(self, cron: NewCron) -> Cron:
        """Create the recurring message, or replace all of it. Its next time is the first after now; it stays where the
        expression and the time zone do. The queue appears with the first message."""

    async def crons(self, *, after: str | None = None, limit: int = 100) -> list[Cron]:
        """Recurring messages by name, those after the name `after`."""

    async def cron(self, name: str) -> Cron:
        """One recurring message. Raises CronNotFound."""

    async def enable_cron(self, name: str, enabled: bool) -> Cron:
        """Let a recurring message rest, or go on with the first time after now; nothing is made up for. Raises
        CronNotFound."""

    async def remove_cron(self, name: str) -> bool:
        """Remove a recurring message. What it pushed stays. False if there is none."""

    # Dead letters

    async def dead_letters(self, where: DeadLetterFilter, *, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        """Dead letters that match, newest first (failed_at, then id), and how many match in all."""

    async def dead_letter(self, dead_letter_id: int) -> DeadLetter:
        """One dead letter. Raises DeadLetterNotFound."""

    async def redrive(self, where: DeadLetterFilter, *, limit: int = 1000, done: bool | None = None) -> int:
        """Push the messages of matching dead letters, oldest first (id), to the end of their partitions again and
        remove the dead letters, in one transaction; returns how many: at most `limit`, and 0 only if no more match.

        The new message has the old payload, trace id, kind, reference, encoding, producer_sub and headers, and there
        `lockstep-redriven-from` with the old message id. It has no transaction id of its own: the old one is used
        up. Every group sees it.

        A copy in a dead queue goes with its dead letter, unless queue mode has done it there; so a message is sent back
        once, by this or by redrive_queue. A dead letter whose copy is under a live lease stays: somebody is at it. So
        does one whose copy queue mode has completed, also if retention has removed the copy since, unless `done`; None
        is only where the filter has ids.
        """

    async def redrive_queue(self, queue: str, *, limit: int = 1000) -> int:
        """Send messages of a dead queue back to the end of the partitions they came from, by partition id and seq, at
        most `limit`, in one transaction; returns how many. Each goes once, however many do this at the same time.

        Only what was put there for being dead, whose queue still exists, that queue mode has not done, and that is
        under no live lease. It is removed from the dead queue, and its dead letter with it. Raises QueueNotFound,
        QueueFull.
        """

    async def purge(self, where: DeadLetterFilter) -> int:
        """Remove matching dead letters, in slices; returns how many. Their messages stay until retention takes them."""

    # The store itself

    def counts(self) -> StoreCounts:
        """Its connections and caches in this process."""

    async def database_stats(self) -> DatabaseStats:
        """The database beneath it, as that counts itself."""

    # Operations

    async def leases(
        self, *, queue: str | None = None, expiring_within: timedelta | None = None, limit: int = 1000
    ) -> list[LeaseInfo]:
        """Live leases by deadline. Raises QueueNotFound."""

    async def utilisation(self, *, queue: str | None = None, exact: bool = False) -> list[Utilisation]:
        """How busy each group of each queue is, by queue, then group. Raises QueueNotFound."""

    async def verify(self, *, queue: str | None = None) -> list[Problem]:
        """Check every invariant of the stored data; returns what is off. Raises QueueNotFound."""

    async def repair(self, *, queue: str | None = None) -> list[Problem]:
        """Verify, and recompute what can be recomputed; returns what was off, and which of it is repaired."""

    # Maintenance. Walks through all queues go in batches, each a call of its own that begins at the `next` of the one
    # before, and at the start without one.

    async def prune(self, kind: PruneKind, *, after: Place | None = None, limit: int) -> Pruned:
        """Remove messages that a queue's policy says are to go (`core/maintenance.py`), oldest first, with their dedup
        entries, trace entries, trace events and dead letters; tell the history.

        A batch is of one queue and ends with the segment that makes it `limit` messages or more; it may also end
        early. Cursors pass what is removed before them, as after a clear; a partition goes on that was stopped by it.
        What could not be locked in time, and what comes after it in its partition, stays until the next walk.
        The kind `expiry` removes nothing: the cursors that are not under a live lease pass what expired, and so do
        shared groups in what they have in flight without one, whether it is due or waits for its retry.
        """

    async def prune_partitions(self, idle_seconds: float, *, after: Place | None = None, limit: int) -> Pruned:
        """Remove partitions that have been found empty for `idle_seconds`; tell the history.

        Empty: every message was removed. One that never had any stays, and so do `Default`, those under a live lease,
        and those for which a stream query keeps state. The first walk that finds one empty starts its time. Its next
        push makes it anew, from seq 1.
        """

    async def prune_queues(self, *, after: Place | None = None) -> Pruned:
        """Remove some more of what is left of queues that were deleted, and do not exist any more for anybody else. One
        that somebody's transaction still holds is passed."""

    async def prune_groups(self, *, after: Place | None = None) -> Pruned:
        """Make some of the cursors that new and moved groups still lack, or remove some that deleted groups have
        left. Nobody sees a difference: a missing cursor is where its group began, and what a deleted group has left
        means nothing. What somebody's transaction holds is passed."""

    async def prune_history(self, seconds: float, *, limit: int) -> int:
        """Remove samples and removals that are older, at most `limit` of each; returns how many."""

    async def claim_duty(self, name: str, *, interval_seconds: float, hold_seconds: float, by: str) -> DutyClaim:
        """Begin a duty, if it is due and nobody else is at it. The claim ends with finish_duty, or by itself after
        `hold_seconds`. A duty is due `interval_seconds` after it last began; one that was never done is due now."""

    async def finish_duty(
        self,
        name: str,
        *,
        by: str,
        effect: dict[str, Any] | None = None,
        error: str | None = None,
        more: bool = False,
    ) -> bool:
        """End a claim, and keep what came of it; with `more` the duty is due again at once. False if the claim was not
        theirs any more; nothing is changed then."""

    async def duties(self) -> list[DutyInfo]:
        """Duties that were ever claimed, by name."""

    async def sample(self, *, seconds_max: float | None = None) -> int:
        """Take a sample of every queue, and its figures for lists; returns of how many. A queue gets no second one in
        the same instant.

        Each queue is walked over in slices, a short transaction each. After `seconds_max` the walks over large queues
        pause, each with at least one slice done; the next call goes on with them.
        """

    async def samples(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Sample | None = None,
        limit: int = 1000,
    ) -> list[Sample]:
        """Samples taken at or after `from_at` and before `to_at`, by time, then queue; those after the sample `after`.
        They outlive their queue."""

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
        """The samples taken at or after `from_at` and before `to_at`, joined into spans of so many seconds, by time.
        A namespace or task is that of queues that still exist."""

    async def removals(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Removal | None = None,
        limit: int = 1000,
    ) -> list[Removal]:
        """What was removed in the minutes at or after `from_at` and before `to_at`, by minute, queue, then kind; those
        after the removal `after`. They outlive their queue."""

    async def verify_slice(self, *, after: Place | None = None, partitions: int) -> Verified:
        """Verify the next partitions, at most so many, of one queue, or as many of what else there is; the last slices
        of a queue have what belongs to the whole queue. What cannot be verified in time is a problem, `unverified`, and
        the walk goes on after it."""
