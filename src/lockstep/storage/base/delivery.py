"""Messages in and out: the hot verbs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lockstep.core.messages import Batch, PushResult
from lockstep.core.records import (
    Ack,
    AckOutcome,
    Awaited,
    Continued,
    NextRequest,
    PendingRequest,
    Popped,
    PopRequest,
    Renewal,
    Renewed,
    TransactionResult,
)


class Delivery(Protocol):
    """Takes messages in, hands them out, and ends their deliveries."""

    async def push(self, batches: Sequence[Batch], *, lock_seconds: float | None = None) -> PushResult:
        """Store the messages of all batches, in order, or none of them; queues and partitions are created as needed.

        Seqs are dense per partition and in commit order. A message whose transaction id the partition has seen, in this
        call or before, is not stored; its receipt is a duplicate that names the first message. Receipts are in the
        order of the batches and of their messages; several batches may name the same partition. A call with more than
        ids.SEGMENT_MESSAGES_MAX messages raises TooLarge.

        A queue with a max_size holds at most that many pending messages (the lag of its furthest-behind group; all
        stored messages while it has no group), however many producers push at once. If the new messages of this call,
        not counting duplicates, would exceed it, the call raises QueueFull with the details queue, depth and max_size,
        and stores nothing. Receipts of such a queue have its depth and remaining capacity.

        A batch with a schedule whose time is at least the setting schedule_min_seconds ahead waits until then: its
        queue is created, but not its partition, and it does not count towards max_size. Its receipts have the status
        `scheduled`, a schedule id and the due time. If the queue already has a schedule with its key, or the partition
        one with its transaction id, nothing is stored, and the receipt is a duplicate that names that schedule. Its
        transaction id is compared with stored messages when it is promoted.

        A push locks its partitions until its transaction ends, and other pushes wait for them for up to `lock_seconds`,
        or the store's own limit; then the call raises LockTimeout.

        While operations wait for one of its partitions, the call raises OperationPending and stores nothing; the detail
        `batches` has the indexes of the batches concerned. The same applies to pushes of transactions and of stream
        cycles. Messages that are promoted, redriven or sent to a dead queue cannot break a producer's order, so they
        may overtake operations.
        """

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]:
        """Lease and return due messages, for each request in turn.

        A request for a queue that does not exist finds nothing, creates nothing, and sets `no_queue`; a request for a
        partition that does not exist finds nothing. The first pop of a group on an existing queue creates the group,
        whatever the pop finds, with its stored subscription, or else with the request's. Queue mode always starts from
        the first message. `all` begins with the first stored message, `new` with the first pushed after this call,
        `from` with the first created at or after the time. This applies to all existing partitions; later partitions
        are read from their first message.

        Among the due partitions those with the earliest due_at come first (then the lower partition id). They are
        claimed until `partitions` are claimed or `batch` messages are leased; a claimed partition gives the messages
        after its cursor, as far as they are visible (delay) and fit. Before a partition is claimed, its cursor is
        corrected: an expired lease is charged (`rules.expire`), messages that waited longer than max_wait and removed
        messages are skipped; then due_at is recomputed, and the partition is claimed only if it is still due. An
        expired message (`rules.is_expired`) is skipped in the same way, with a dead letter if on_expired is `dead`; a
        claim ends before such a message. In a balanced queue the fullest partitions come first.

        A namespace and/or task request creates the group on all its queues where it is new, and visits them by
        priority, highest first, then by name, until `partitions` or `batch` is reached, all under one lease id.

        A new group gets the request's mode, or else its queue's group_mode. In a shared group (`core/shared.py`),
        single messages are leased: first due redeliveries, earliest first (due_at, partition id, seq), with each range
        corrected as a cursor is; then new messages, by partition as above. Other consumers can continue after them at
        once. `delay` and `window` apply to new messages. Raises GroupModeMismatch if the group has another mode than
        the request's, or has both modes in a namespace or task; then no request of the call is served.

        auto_ack: the cursor moves past the returned messages at once and no lease remains, so no attempt is counted.
        """

    async def has_pending(self, requests: Sequence[PendingRequest]) -> list[bool]:
        """Whether a pop now may find something. True for a group that does not exist yet on an existing queue.

        It may be true although a pop finds nothing (a cursor that only the next pop corrects), but it is never false if
        a pop would find something.
        """

    async def due_in(self, awaited: Sequence[Awaited], *, within: float) -> list[float | None]:
        """The number of seconds until a pop may find something: 0 if `has_pending` is true, otherwise the time until
        the next retry, end of a delay or end of a lease; None if nothing is known to become due within the given time.

        A namespace and/or task covers all its queues.
        """

    async def ack(self, acks: Sequence[Ack], *, lock_seconds: float | None = None) -> list[AckOutcome]:
        """End deliveries, each of `completed`, `failed`, `retry` or `dlq`; one outcome per ack, in order.

        The acks of one call for the same cursor are applied together, in seq order (`rules.settle`): commit of a
        prefix, clamp, fencing by lease, exhaustion by the queue's on_exhausted. An ack by lease alone applies to each
        partition of the lease: `completed` to everything that it leased, other statuses to the head. With a seq (and a
        partition_id if the lease has several partitions) it applies to that seq. A lost lease gives lease_lost. A
        partition id that does not exist gives unresolvable, and so does a group without a cursor there, unless the ack
        names a lease (lease_lost, because it cannot be the group's). An ack for several partitions succeeds if all of
        them do, counts their messages, and names the queue and partition of the first. A transaction id is resolved
        first as the producer's, then as a message id. Dead letters are recorded with error, attempts and time. If the
        queue has a dead queue, they are also pushed there in the same transaction, to the partition of the same name,
        with headers that record the origin and the reason. The same applies wherever a message becomes a dead letter.

        In a shared group each message ends separately, in any order, and nothing is clamped (`shared.settle`). An ack
        by lease applies to everything that the lease still holds, whatever the status; acks of single messages are
        applied first. A message that another lease has, that no live lease has although the ack names a lease, or that
        was never delivered gives lease_lost.

        An ack that leaves nothing ahead waits for pushes to the partition, for up to `lock_seconds`, or the store's own
        limit; then the call raises LockTimeout.
        """

    async def next(
        self, requests: Sequence[NextRequest], *, hold_seconds: float, lock_seconds: float | None = None
    ) -> list[Continued]:
        """Continue leases: complete everything that each of them holds, and lease the next messages, in one
        transaction.

        It is an `ack` of each whole lease, followed by a `pop` of all the requests, with the same rules. A request
        whose lease is lost, or was named by an earlier request of the call, gets the outcome of its ack, and nothing is
        leased for it. The new messages have a new lease id: a repeated request finds its lease gone, and skips nothing.

        If the request names a queue that is not balanced, and its group is ordered, the partitions of the lease come
        first: by id, those that have visible messages, up to `partitions` of them, each with its share of the batch
        (`rules.share`). Then other due partitions are claimed, until the limits are reached. A partition is kept in
        this way for `hold_seconds` from its first lease (`rules.is_kept`; its `leased_at` stays the same). After that
        it takes its turn behind earlier due partitions; and if the request gives way, this call does not lease it
        again.

        The outcome is `released` if a partition of the lease was not leased again and has more; it may also be if the
        next messages there were skipped. The requests must not use `auto_ack`. The call waits for locks as `ack` does.
        """

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        """Move the deadline of live leases to `seconds` from now (default the queue's lease time); never earlier."""

    async def transaction(
        self, acks: Sequence[Ack], batches: Sequence[Batch], *, required_leases: Sequence[str] = ()
    ) -> TransactionResult:
        """Acks and then pushes, all or nothing.

        An ack without success (noop counts as success) raises TransactionRolledBack with details `outcomes` (the
        list of AckOutcome); a full queue raises QueueFull; nothing is applied then. Duplicates are no failure. A
        required lease that is not live when the transaction begins counts as a failed ack, without outcomes; the other
        leases are locked until the transaction ends.
        """
