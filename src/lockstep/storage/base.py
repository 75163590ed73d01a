"""The contract of a store: the verbs of Lockstep over whatever keeps the messages.

Every store passes the same contract tests and agrees with the memory store, operation by operation. The rules
that a docstring here names are written down in `core/rules.py`.

What holds for every verb:
* Input was validated by the engine: names, sizes and ranges are right. What only the store can know (an
  unknown queue, a full queue, a lost lease) is the store's to check.
* A call that raises has changed nothing. Outcomes of single items are returned, not raised.
* Time is the store's clock: the database's own, or one that was set.
* A call is one transaction; concurrent calls behave as if one came after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from lockstep.core.messages import Batch, Message, PushResult
from lockstep.core.policy import QueueOptions
from lockstep.core.records import (
    Ack,
    AckOutcome,
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
    PendingRequest,
    Popped,
    PopRequest,
    Position,
    Problem,
    QueueInfo,
    Renewal,
    Renewed,
    Subscription,
    TransactionResult,
    Utilisation,
)


class Store(Protocol):
    """Where queues, partitions, messages and cursors live."""

    async def open(self) -> None:
        """Make ready for use: connect, migrate. Raises Unavailable or SchemaTooNew."""

    async def close(self) -> None:
        """Let go of everything. Safe to call twice."""

    async def ping(self) -> None:
        """Return if the store answers; raise Unavailable if it does not."""

    # Queues and partitions

    async def configure(
        self, queue: str, options: QueueOptions, *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        """Create the queue, or replace its whole configuration; it has a partition `Default` then.

        Namespace and task of a new queue, where None, are the first two dot-separated pieces of its name; those
        of an existing queue, where None, stay. New options rule the next push, pop or ack; what due_at already
        says (a lease's deadline, a retry time) stays.
        """

    async def delete_queue(self, queue: str) -> bool:
        """Remove the queue with all that belongs to it. False if there is none."""

    async def clear(self, queue: str, *, partition: str | None = None, scope: ClearScope = "all") -> int:
        """Remove stored messages of a queue or one partition; returns how many.

        `all`: every message; leases are dropped and every cursor is at the end. `unleased`: every message that is
        under no live lease of any group; the leases stay and can be acknowledged. Dedup entries, trace entries and
        dead letters of removed messages go with them. Seqs go on where they were: nothing is numbered twice.
        Raises QueueNotFound, PartitionNotFound.
        """

    async def queues(
        self,
        *,
        namespace: str | None = None,
        task: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[QueueInfo]:
        """Queues by name, those after the name `after`."""

    async def queue(self, queue: str) -> QueueInfo:
        """One queue. Raises QueueNotFound."""

    async def partitions(self, queue: str, *, after: str | None = None, limit: int = 100) -> list[PartitionInfo]:
        """A queue's partitions by name, those after the name `after`. Raises QueueNotFound."""

    async def partition(self, queue: str, partition: str) -> PartitionInfo:
        """One partition. Raises QueueNotFound, PartitionNotFound."""

    # Messages in

    async def push(self, batches: Sequence[Batch]) -> PushResult:
        """Store the messages of all batches, in order, or none of them; queues and partitions appear as needed.

        Seqs are dense per partition and in commit order. A transaction id that the partition has seen, in this
        call or before, stores nothing; its receipt is a duplicate that names the first message. The receipts are
        in the order of the batches and of the messages in them; several batches may name the same partition. A call
        has at most ids.SEGMENT_MESSAGES_MAX messages, else TooLarge.

        A queue with a max_size holds at most that many pending messages (the lag of its furthest-behind group; all
        stored messages while it has no group), however many producers push at once. If the new messages of this
        call, duplicates not counted, would exceed it, the call raises QueueFull with details queue, depth, max_size
        and nothing of it is stored. Receipts of such a queue tell its depth and remaining capacity.
        """

    # Messages out

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]:
        """Lease and return what is due, for each request in turn.

        A request for a queue that does not exist, or a partition that does not, finds nothing and creates nothing.
        The first pop of a group on an existing queue creates the group: a stored subscription wins, else the
        request's. Queue mode always starts from the first message. `all` begins with the first stored message,
        `new` with the first pushed after this call, `from` with the first created at or after the time; each for
        all partitions that exist; partitions that appear later are read from their first message.

        Among the due partitions those with the earliest due_at come first (then the lower partition id). They are
        claimed until `partitions` are claimed or `batch` messages are leased; a claimed partition gives what it has
        ahead, as far as it is visible (delay) and fits. Before a partition is claimed its cursor is put right:
        an expired lease is charged (`rules.expire`), messages that waited longer than max_wait are passed, what
        was removed is skipped; then due_at is computed anew, and only if it is still due is it claimed.

        A namespace and/or task request creates the group on all its queues, where it is new, and goes through them
        by priority, highest first, then by name, until `partitions` or `batch` is reached, all under one lease id.

        auto_ack: the cursor moves over what is returned at once and no lease remains; so no attempt is counted.
        """

    async def has_pending(self, requests: Sequence[PendingRequest]) -> list[bool]:
        """Whether a pop now may find something. True for a group that does not exist yet on an existing queue.

        May be true a little too often (a cursor that only the next pop will put right), never falsely false.
        """

    async def ack(self, acks: Sequence[Ack]) -> list[AckOutcome]:
        """End deliveries, each of `completed`, `failed`, `retry` or `dlq`; one outcome per ack, in order.

        The acks of one call for the same cursor are applied together, in seq order (`rules.settle`): commit of a
        prefix, clamp, fencing by lease, exhaustion by the queue's on_exhausted. An ack by lease alone stands for
        each partition of the lease: completed up to the end of what it leased, otherwise the head; with a seq (and
        partition_id where the lease has several) for that seq. A lease that is gone: lease_lost. A partition id
        that does not exist, or a group that has no cursor there: unresolvable. An ack that stands for several
        partitions succeeds if all did, counts their messages, and names the first one's queue and partition.
        A transaction id is resolved as given by the producer, else as a message id. Dead letters are recorded with
        error, attempts and time.
        """

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        """Move the deadline of live leases to `seconds` from now (default the queue's lease time); never earlier."""

    async def transaction(self, acks: Sequence[Ack], batches: Sequence[Batch]) -> TransactionResult:
        """Acks and then pushes, all or nothing.

        An ack without success (noop counts as success) raises TransactionRolledBack with details `outcomes` (the
        list of AckOutcome); a full queue raises QueueFull; nothing is applied then. Duplicates are no failure.
        """

    # Groups

    async def subscribe(self, queue: str, group: str, subscription: Subscription) -> GroupInfo:
        """Create the group on the queue as its first pop would, or leave it as it is. Raises QueueNotFound."""

    async def set_subscription(self, group: str, subscription: Subscription, *, queue: str | None = None) -> int:
        """Store where the group begins when it next starts afresh; on one queue, or all on which it exists or has
        a stored subscription. Returns on how many. Raises QueueNotFound, GroupNotFound."""

    async def seek(self, queue: str, group: str, position: Position, *, partition: str | None = None) -> int:
        """Move the group's cursors on a queue or one partition; returns how many cursors there are.

        start: before the first stored message. end: after the last. time: after the last message created at or
        before it. seq: before that seq, and not before the first stored message nor after the last. current: where
        it is. Leases are dropped, attempts start again, a stopped partition goes on. Raises QueueNotFound,
        GroupNotFound, PartitionNotFound.
        """

    async def delete_group(self, group: str, *, queue: str | None = None, forget_subscription: bool = True) -> int:
        """Remove the group's cursors, on one queue or all, so that its next pop starts afresh; with
        forget_subscription also where it begins. Returns how many cursors went. Raises QueueNotFound, GroupNotFound."""

    async def groups(self, *, queue: str | None = None, group: str | None = None) -> list[GroupInfo]:
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
        """Cursors with their exact lag, by partition id, then group name. Raises QueueNotFound, GroupNotFound,
        PartitionNotFound."""

    async def depth(self, queue: str, group: str) -> Depth:
        """Exact sums of the lag. For queue mode that was never popped: all that is stored. Raises QueueNotFound,
        GroupNotFound."""

    # Looking at messages

    async def messages(self, where: MessageFilter, *, cursor: str | None = None, limit: int = 100) -> MessagePage:
        """A page of a queue's stored messages: by partition id and seq. Raises QueueNotFound, PartitionNotFound,
        InvalidRequest for a cursor that is none."""

    async def message(self, identity: str, *, partition_id: int | None = None) -> MessageView:
        """One message by its id; or, with a partition id, by its transaction id or its id. Raises MessageNotFound."""

    async def trace(self, trace_id: str, *, limit: int = 1000) -> list[Message]:
        """All messages of a trace over all queues, by created_at, then id."""

    # Dead letters

    async def dead_letters(self, where: DeadLetterFilter, *, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        """Dead letters that match, newest first (failed_at, then id), and how many match in all."""

    async def dead_letter(self, dead_letter_id: int) -> DeadLetter:
        """One dead letter. Raises DeadLetterNotFound."""

    async def redrive(self, where: DeadLetterFilter, *, limit: int = 1000) -> int:
        """Push the messages of matching dead letters, oldest first (id), to the end of their partitions again and
        remove the dead letters, in one transaction; returns how many.

        The new message has the old payload, trace id, kind, reference, encoding, producer_sub and headers, and there
        `lockstep-redriven-from` with the old message id. It has no transaction id of its own: the old one is used
        up. Every group sees it.
        """

    async def purge(self, where: DeadLetterFilter) -> int:
        """Remove matching dead letters; returns how many. Their messages stay until retention takes them."""

    # Operations

    async def leases(
        self, *, queue: str | None = None, expiring_within: timedelta | None = None, limit: int = 1000
    ) -> list[LeaseInfo]:
        """Live leases by deadline. Raises QueueNotFound."""

    async def utilisation(self, *, queue: str | None = None) -> list[Utilisation]:
        """How busy each group of each queue is, by queue, then group. Raises QueueNotFound."""

    async def verify(self, *, queue: str | None = None) -> list[Problem]:
        """Check every invariant of the stored data; returns what is off. Raises QueueNotFound."""

    async def repair(self, *, queue: str | None = None) -> list[Problem]:
        """Verify, and recompute what can be recomputed; returns what was off, and which of it is repaired."""
