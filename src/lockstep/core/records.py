"""Requests to a store and its answers, except for the messages themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple

import msgspec

from lockstep.core.endings import AckStatus
from lockstep.core.messages import Batch, Message, PushResult, Run
from lockstep.core.names import QUEUE_MODE
from lockstep.core.policy import GroupMode, QueueOptions
from lockstep.errors import InvalidRequest, TransactionRolledBack

MessageStatus = Literal["pending", "processing", "completed", "dead_letter"]
AckError = Literal["unresolvable", "committed", "lease_lost", "clamped"]
SubscriptionMode = Literal["all", "new", "from"]
ClearScope = Literal["all", "unleased", "scheduled"]


class Subscription(msgspec.Struct, frozen=True):
    """Where a group starts on a queue that it reads for the first time."""

    mode: SubscriptionMode = "all"
    from_at: datetime | None = None
    """With mode `from`: messages created at or after this time."""


class PopRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer asks for: a queue, a partition of it, or all queues of a namespace and/or task."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    group: str = QUEUE_MODE
    batch: int = 1
    """Maximum number of messages, over all claimed partitions."""
    partitions: int = 1
    """Maximum number of partitions to claim."""
    lease_seconds: float | None = None
    """Overrides the queue's option."""
    auto_ack: bool = False
    subscription: Subscription = Subscription()
    mode: GroupMode | None = None
    """How the group is served. None: an existing group keeps its mode, a new group takes that of its queue."""


@dataclass(slots=True)
class Popped:
    """The messages delivered by one pop, under one lease. Without messages it is empty and has no lease."""

    group: str
    runs: list[Run] = field(default_factory=list)
    lease_id: str | None = None
    """None if nothing was popped, or if the pop acknowledged at once."""
    expires_at: datetime | None = None
    mode: GroupMode = "ordered"
    """In a shared group each message is acknowledged on its own."""
    no_queue: bool = False
    """The requested queue does not exist."""
    unfinished: bool = False
    """More messages may be due behind expired ones, which were too many to skip in one call."""

    def __len__(self) -> int:
        return sum(len(run.columns) for run in self.runs)

    @property
    def partition_ids(self) -> list[int]:
        """The claimed partitions, ordered by their first message here."""
        return list(dict.fromkeys(run.partition_id for run in self.runs))

    def messages(self) -> Iterator[Message]:
        for run in self.runs:
            yield from run.messages()

    def payloads(self) -> list[bytes]:
        return [payload for run in self.runs for payload in run.columns.payloads]


class Arrival(NamedTuple):
    """What has arrived in a queue: the number of partitions and messages, 0 if unknown. Messages in no partition are
    scheduled."""

    partitions: int = 1
    messages: int = 0


LEASES_ENDED = Arrival(0, 0)
"""Nothing arrived, but leased messages may be available again."""


def arrivals_of(batches: Iterable[Batch]) -> dict[str, Arrival]:
    """What has arrived in each queue with these batches."""
    found: dict[str, list[Batch]] = {}
    for batch in batches:
        found.setdefault(batch.queue, []).append(batch)
    return {
        queue: Arrival(len({batch.partition for batch in own}), sum(len(batch.columns) for batch in own))
        for queue, own in found.items()
    }


class Awaited(NamedTuple):
    """What a pop waits for. Without a queue: any queue of a namespace and/or task, or any queue at all."""

    queue: str | None
    group: str
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True)
class FirstPollLimits:
    """Limits of what a store remembers about polls with the subscription `new` for queues that do not exist yet."""

    polls_max: int = 10_000
    """Setting first_polls_max."""
    seconds_max: float = 86_400.0
    """Setting first_poll_seconds_max."""


class PendingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks whether a pop would find something."""

    queue: str
    partition: str | None = None
    group: str = QUEUE_MODE

    def awaited(self) -> Awaited:
        return Awaited(self.queue, self.group, self.partition)


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one delivery. Two forms:

    * by lease: `lease_id`, and optionally `partition_id` and `seq`; without a seq it speaks for all that the
      lease holds (completed: everything is done; otherwise, in an ordered group: the first message not yet done);
    * by message: `partition_id` and `transaction_id`, for `group`; the lease is checked if `lease_id` is given.
    """

    lease_id: str | None = None
    partition_id: int | None = None
    seq: int | None = None
    transaction_id: str | None = None
    group: str = QUEUE_MODE
    status: AckStatus = "completed"
    error: str | None = None
    retry_at: datetime | None = None
    """With `failed` or `retry`: when the message is delivered again, instead of at once or after the queue's delay."""

    @property
    def ends_lease(self) -> bool:
        """Whether it completes everything that a lease holds. The engine joins such acks, and stores handle them more
        cheaply.
        """
        return (
            self.status == "completed"
            and self.lease_id is not None
            and self.partition_id is None
            and self.seq is None
            and self.transaction_id is None
        )


class AckOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one ack."""

    index: int
    success: bool
    error: AckError | None = None
    noop: bool = False
    """A completed ack of a message that was already done."""
    released: bool = False
    """The call made something available to others: the lease on the partition ended or, in a shared group, messages
    were put back."""
    dead: bool = False
    """The message became a dead letter."""
    messages: int = 0
    """Number of messages completed by this ack."""
    queue: str | None = None
    partition: str | None = None


ACK_ERROR_TEXTS: dict[AckError, str] = {
    "unresolvable": "unresolvable: this partition has no such message, or the group has no place in it",
    "committed": "already committed: the message is below the cursor",
    "lease_lost": "the lease is not, or no longer, the live lease of this message in this group",
    "clamped": "not committed: an earlier message of the same call was not completed",
}


class NextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Completes everything that a lease holds and asks for the next messages."""

    lease_id: str
    pop: PopRequest
    give_way: bool = False
    """Other consumers wait for the same messages: partitions held for long enough are left to them."""


@dataclass(slots=True)
class Continued:
    """The result of continuing a lease, and what was leased next."""

    acked: AckOutcome
    popped: Popped
    """Empty if the lease was lost."""


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for more time. A renewal never shortens a lease."""

    lease_id: str
    seconds: float | None = None
    """From now; None: the queue's lease time."""


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: str
    partitions: int
    """Number of partition leases extended; 0 if the lease is gone."""
    expires_at: datetime | None = None
    """The earliest of their deadlines."""


@dataclass(slots=True)
class TransactionResult:
    acks: list[AckOutcome]
    pushed: PushResult


def refuse_lost(lease_ids: Sequence[str]) -> None:
    """Raise TransactionRolledBack if a transaction requires leases that are lost."""
    if lease_ids:
        raise TransactionRolledBack(f"transaction rolled back: lease {lease_ids[0]} is lost", outcomes=[])


def refuse_failed(outcomes: list[AckOutcome], *, once: bool = False) -> None:
    """Raise TransactionRolledBack if an ack of a transaction failed; with `once`, a noop counts as a failure."""
    failed = next((outcome for outcome in outcomes if not outcome.success or (once and outcome.noop)), None)
    if failed is not None:
        text = f"transaction rolled back: ack {failed.index} failed with {failed.error or 'committed'}"
        raise TransactionRolledBack(text, outcomes=outcomes)


class Position(msgspec.Struct, frozen=True):
    """The target of a seek."""

    kind: Literal["start", "end", "time", "seq", "current"]
    at: datetime | None = None
    """With kind `time`: messages created at or before this time count as done."""
    seq: int | None = None
    """With kind `seq`: the next message to deliver."""


class SeekPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a seek would do."""

    partitions: int
    """Partitions examined."""
    read_again: int
    """Messages that are done and would be delivered again."""
    skipped: int
    """Messages that are not done and would no longer be delivered."""
    leases: int
    """Partitions under a live lease, which would be lost."""
    complete: bool
    """Whether all partitions were examined."""


class PartitionLag(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a group in one partition."""

    queue: str
    partition: str
    partition_id: int
    group: str
    acked: int
    last_seq: int
    lag: int
    """Stored messages that are not done."""
    oldest_at: datetime | None
    """When the first message of the lag was created."""
    due_at: datetime | None
    """When a pop finds something here; None if drained."""
    stopped: bool
    """A message was exhausted, the queue says `stop`, and the partition waits for an operator."""
    attempts: int
    leased: bool
    consumed_at: datetime | None
    in_flight: int = 0
    """Messages of the lag that are under a live lease."""
    unread: int = 0
    """The other messages of the lag."""
    retrying: int = 0
    """For a shared group: messages that were delivered before and will be delivered again."""


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """What a group still has to do in a queue."""

    queue: str
    group: str
    pending: int | None
    partitions_pending: int | None
    leased: int | None
    """Pending messages under a live lease."""
    unread: int | None = 0
    """The other pending messages."""
    oldest_at: datetime | None = None
    """When the oldest pending message was created."""
    figures_at: datetime | None = None
    """When these figures were counted; None: they are current. Figures of a large queue are counted from time to time,
    and None (unknown) until the first count."""


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A group on one queue."""

    name: str
    queue: str
    created_at: datetime
    subscription: Subscription
    partitions: int | None
    partitions_with_lag: int | None
    lag: int | None
    """Stored messages that are not done."""
    leases: int | None
    oldest_at: datetime | None
    """When the oldest message of the lag was created."""
    mode: GroupMode = "ordered"
    in_flight: int | None = 0
    """Messages of the lag that are under a live lease."""
    unread: int | None = 0
    """The other messages of the lag."""
    figures_at: datetime | None = None
    """When these figures were counted; None: they are current. Figures of a large queue are counted from time to time,
    and None (unknown) until the first count."""
    paused_at: datetime | None = None
    """Since when nothing is delivered to the group."""


class SparkStreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A Spark stream on one queue, as last reported."""

    id: str
    name: str
    queue: str
    kind: Literal["spark"] = "spark"
    lag: int
    """Messages of the queue still to read."""
    oldest_at: datetime | None
    """When the first unread message was created."""
    created_at: datetime
    updated_at: datetime
    held_until: datetime
    """Retention keeps unread messages until this time, even if the stream stays silent."""


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    name: str
    namespace: str
    task: str
    options: QueueOptions
    created_at: datetime
    partitions: int | None
    messages: int | None
    """Stored messages."""
    pending: int | None
    """The lag of the group that is furthest behind; without groups, all stored messages."""
    processing: int | None
    """Messages under a live lease, over all groups."""
    dead_letters: int | None
    oldest_at: datetime | None = None
    """When the oldest pending message was created."""
    figures_at: datetime | None = None
    """When these figures were counted; None: they are current. Figures of a large queue are counted by a duty from time
    to time, and None (unknown) until the first count."""


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    queue: str
    name: str
    created_at: datetime
    first_seq: int
    """Seq of the oldest stored message; last_seq + 1 if there is none."""
    last_seq: int
    messages: int
    pending: int
    processing: int
    dead_letters: int
    oldest_at: datetime | None
    newest_at: datetime | None


class PartitionStats(msgspec.Struct, frozen=True, kw_only=True):
    """The messages in a partition."""

    partition: str
    total: int = 0
    """Messages from the first one that some group has not done; without groups, all stored messages."""
    leased: int = 0
    """Messages under a live lease, over all groups."""
    scheduled: int = 0
    """Scheduled messages. A partition may have nothing else, and need not exist yet."""
    age_seconds_average: float | None = None
    """Average age of the messages in `total`."""
    lease_age_seconds_average: float | None = None
    """Average time since the leased messages were leased."""
    oldest_at: datetime | None = None
    """When the oldest message in `total` was created."""


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects messages; a field that is None does not filter."""

    queue: str | None = None
    partition: str | None = None
    """A partition of the queue, which must be given as well."""
    namespace: str | None = None
    task: str | None = None
    status: MessageStatus | None = None
    from_at: datetime | None = None
    """Created at or after."""
    to_at: datetime | None = None
    """Created before."""


class GroupProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A group's state with respect to one message."""

    group: str
    consumed: bool
    lease_expires_at: datetime | None


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message with its status over all groups."""

    message: Message
    status: MessageStatus
    groups: list[GroupProgress]


LOOKED_INTO_MAX = 10_000
"""How many messages a page of a list looks at, by default."""


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    items: list[MessageView]
    next_cursor: str | None
    """Pass it to get the next page; None at the end. A page may be short, even empty, and still have a next page."""
    looked_into: int = 0
    """How many messages were looked at for the page. Runs that were not created within the period, and partitions
    without messages, count as one each."""


_NEWEST_FIRST = "n"
"""First part of the cursors of lists that start with the newest message."""


def page_cursor(partition_id: int, seq: int) -> str:
    """The cursor of the page after a message."""
    return f"{partition_id}.{seq}"


def newest_cursor(major: int, minor: int) -> str:
    """The same for a list that starts with the newest message. The store defines the meaning of the numbers."""
    return _NEWEST_FIRST + page_cursor(major, minor)


def parse_newest_cursor(cursor: str) -> tuple[int, int]:
    """The numbers of a `newest_cursor`. Raises InvalidRequest."""
    if not cursor.startswith(_NEWEST_FIRST):
        raise InvalidRequest(f"not a cursor of a list with newest_first: {cursor[:64]!r}")
    return parse_page_cursor(cursor.removeprefix(_NEWEST_FIRST))


def parse_page_cursor(cursor: str | None) -> tuple[int, int]:
    """The partition id and seq after which a page starts. Raises InvalidRequest."""
    if cursor is None:
        return 0, 0
    partition_id, _, seq = cursor.partition(".")
    if not (partition_id.isascii() and partition_id.isdigit() and seq.isascii() and seq.isdigit()):
        raise InvalidRequest(f"not a page cursor: {cursor[:64]!r}")
    if int(partition_id) >= 2**63 or int(seq) >= 2**62:
        raise InvalidRequest(f"not a page cursor: {cursor[:64]!r}")
    return int(partition_id), int(seq)


class LeaseInfo(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: str
    queue: str
    partition: str
    partition_id: int
    group: str
    first_seq: int
    last_seq: int
    attempt: int
    leased_at: datetime
    expires_at: datetime


class Utilisation(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a queue is for one group. Ready partitions are due and not leased: no consumer has taken them. Waiting
    partitions are due later: delayed, backing off, or held by a window."""

    queue: str
    group: str
    partitions: int | None
    partitions_leased: int | None
    partitions_ready: int | None
    partitions_waiting: int | None
    partitions_stopped: int | None
    figures_at: datetime | None = None
    """When these figures were counted; None: they are current. Figures of a large queue are counted from time to time,
    and None (unknown) until the first count."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    message: Message
    group: str
    attempts: int
    error: str | None
    failed_at: datetime


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    ids: tuple[int, ...] | None = None
    queue: str | None = None
    partition: str | None = None
    group: str | None = None
    from_at: datetime | None = None
    """Failed at or after."""
    to_at: datetime | None = None
    """Failed before."""


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    items: list[DeadLetter]
    total: int


ProblemKind = Literal[
    "seq_gap",
    "cursor_out_of_range",
    "cursor_missing",
    "due_at_wrong",
    "lease_invalid",
    "dedup_dangling",
    "trace_dangling",
    "dead_letter_dangling",
    "segment_missing",
    "segment_orphaned",
    "run_missing",
    "manifest_wrong",
    "depth_wrong",
    "delivery_wrong",
    "unverified",
]


class EncryptionSlice(msgspec.Struct, frozen=True, kw_only=True):
    """What one slice of a walk over all stored data has found and done."""

    next_cursor: str | None = None
    """Where the next slice starts; None at the end."""
    looked_at: int = 0
    """Segments, scheduled messages and recurring messages in the slice, over all queues."""
    rotated: int = 0
    """Items re-encrypted with the active key."""
    failed: int = 0
    """Items that could not be read."""
    failures: list[str] = []
    """The first reasons for failures."""
    found: dict[str, int] = {}
    """How the items of encrypted queues were stored before, by the id of their key. `unbound` is the older encrypted
    form, which does not name its key; `plain` is not encrypted."""
    active_key: str | None = None
    """The id of the active key."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An inconsistency in the store."""

    kind: ProblemKind
    text: str
    repairable: bool
    repaired: bool = False
    queue: str | None = None
    partition_id: int | None = None
