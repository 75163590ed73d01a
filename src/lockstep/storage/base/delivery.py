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
        """Store the messages of all batches, in order, or none of them; queues and partitions appear as needed.

        Seqs are dense per partition and in commit order. A transaction id that the partition has seen, in this
        call or before, stores nothing; its receipt is a duplicate that names the first message. The receipts are
        in the order of the batches and of the messages in them; several batches may name the same partition. A call
        has at most ids.SEGMENT_MESSAGES_MAX messages, else TooLarge.

        A queue with a max_size holds at most that many pending messages (the lag of its furthest-behind group; all
        stored messages while it has no group), however many producers push at once. If the new messages of this
        call, duplicates not counted, would exceed it, the call raises QueueFull with details queue, depth, max_size
        and nothing of it is stored. Receipts of such a queue have its depth and remaining capacity.

        A batch with a schedule whose time is at least the setting schedule_min_seconds ahead waits until then: its
        queue appears, but not its partition, and it does not count for a max_size. Its receipts have the status
        `scheduled`, a schedule id and the due time. If its key waits in the queue already, or its transaction id in the
        partition, nothing is stored, and the receipt is a duplicate that names the schedule that waits. Against stored
        messages its transaction id is compared when it is promoted.

        A push holds its partitions until its transaction ends, and other pushes wait for them: up to `lock_seconds`, or
        the store's own limit; then the call raises LockTimeout.

        While operations wait for one of its partitions, the call raises OperationPending, and nothing of it is stored;
        the detail `batches` has the indexes of those batches. The same holds for the pushes of transactions and of
        stream cycles. Messages that are promoted, redriven or sent to a dead queue cannot break a producer's order, and
        go before operations.
        """

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]:
        """Lease and return due messages, for each request in turn.

        A request for a queue that does not exist finds nothing, creates nothing, and says so (`no_queue`); one for a
        partition that does not exist finds nothing. The first pop of a group on an existing queue creates the group,
        whatever the pop finds: by its stored subscription, or else by the request's. Queue mode always starts from the
        first message. `all` begins with the first stored message, `new` with the first pushed after this call, `from`
        with the first created at or after the time; each for all partitions that exist; partitions that appear later
        are read from their first message.

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

        It may be true although a pop finds nothing (a cursor that only the next pop corrects), but it is never false if
        a pop would find something.
        """

    async def due_in(self, awaited: Sequence[Awaited], *, within: float) -> list[float | None]:
        """In how many seconds a pop may find something: 0 if `has_pending` is true, otherwise the time until the next
        retry, delay or end of a lease; None if nothing is known to become due within that time.

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
        partition of the same name, with headers that say where they came from and why. The same happens wherever a
        message dies.

        In a shared group each message ends for itself, in no order, and nothing clamps (`shared.settle`). An ack by
        lease stands for all that the lease still holds, whatever its status; those of single messages come first. A
        message that another lease has, or no live one while a lease is named, or that was never handed out: lease_lost.

        An ack that leaves nothing ahead waits for those who push to the partition: for as long as `lock_seconds`, or
        the store's own limit, and then the call raises LockTimeout.
        """

    async def next(
        self, requests: Sequence[NextRequest], *, hold_seconds: float, lock_seconds: float | None = None
    ) -> list[Continued]:
        """Continue leases: complete all that each of them holds, and lease what comes next, in one transaction.

        It is an `ack` of all the leases, as a whole each, and then a `pop` of all the requests, with the same rules. A
        request whose lease is lost, or was named by another one of the call, gets the outcome that its ack gets, and
        nothing is leased for it. What is leased has a lease id of its own: a request that is repeated finds its lease
        gone, and skips nothing.

        If the request names a queue that is not balanced, and its group is ordered, the partitions of the lease come
        before others: by id, those that have something visible, up to `partitions` of them, each with its share of the
        batch (`rules.share`). Then other partitions that are due are claimed, until the limits are reached. A partition
        is kept in this way for `hold_seconds` from its first lease (`rules.is_kept`; its `leased_at` stays the same).
        After that it takes its turn behind what was due before; and if the request gives way, this call does not lease
        it again.

        The outcome is `released` if a partition of the lease was not leased again and has more; it may also be if what
        came next there was passed. The requests do not acknowledge at once (`auto_ack`). It waits for locks as `ack`
        does.
        """

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        """Move the deadline of live leases to `seconds` from now (default the queue's lease time); never earlier."""

    async def transaction(
        self, acks: Sequence[Ack], batches: Sequence[Batch], *, required_leases: Sequence[str] = ()
    ) -> TransactionResult:
        """Acks and then pushes, all or nothing.

        An ack without success (noop counts as success) raises TransactionRolledBack with details `outcomes` (the
        list of AckOutcome); a full queue raises QueueFull; nothing is applied then. Duplicates are no failure. A
        required lease that is not live when the transaction begins counts as a failed ack, with no outcomes; the other
        leases are held until the transaction has ended.
        """
