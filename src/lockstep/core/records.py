"""The records that travel between client, engine and store.

Messages travel as columns: one list per field for all messages of a partition. Hot paths slice and join these
lists and never look at a single message; `Message` and `Receipt` are made only for a caller who asks for one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, overload
from uuid import UUID

import msgspec

from lockstep.core.ids import message_id
from lockstep.core.names import DEFAULT_PARTITION, QUEUE_MODE
from lockstep.core.policy import QueueOptions

MessageStatus = Literal["pending", "processing", "completed", "dead_letter"]
AckStatus = Literal["completed", "failed", "retry", "dlq"]
AckError = Literal["unresolvable", "committed", "lease_lost", "clamped"]
SubscriptionMode = Literal["all", "new", "from"]
ClearScope = Literal["all", "unleased"]


# --- Messages ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Columns:
    """Messages as columns: lists of one length; a column that no message uses is None."""

    payloads: list[bytes]
    transaction_ids: list[str | None] | None = None
    trace_ids: list[str | None] | None = None
    kinds: list[str | None] | None = None
    references: list[str | None] | None = None
    encodings: list[str | None] | None = None
    """None is JSON; anything else says what the opaque bytes of the payload are."""
    headers: list[bytes | None] | None = None
    """A JSON object of strings, encoded."""
    producer_subs: list[str | None] | None = None

    def __len__(self) -> int:
        return len(self.payloads)

    def bare(self) -> bool:
        """Whether there is nothing but payloads."""
        return (
            self.transaction_ids is None
            and self.trace_ids is None
            and self.kinds is None
            and self.references is None
            and self.encodings is None
            and self.headers is None
            and self.producer_subs is None
        )

    def slice(self, start: int, stop: int) -> Columns:
        if start == 0 and stop >= len(self.payloads):
            return self
        return Columns(*[None if column is None else column[start:stop] for column in self.all()])  # type: ignore[arg-type]

    def take(self, positions: Sequence[int]) -> Columns:
        return Columns(*[None if column is None else [column[i] for i in positions] for column in self.all()])  # type: ignore[arg-type]

    def all(self) -> tuple[list[Any] | None, ...]:
        """Every column, in the order of COLUMN_NAMES."""
        return (
            self.payloads,
            self.transaction_ids,
            self.trace_ids,
            self.kinds,
            self.references,
            self.encodings,
            self.headers,
            self.producer_subs,
        )


COLUMN_NAMES = (
    "payloads",
    "transaction_ids",
    "trace_ids",
    "kinds",
    "references",
    "encodings",
    "headers",
    "producer_subs",
)


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message to push."""

    queue: str
    payload: bytes
    partition: str = DEFAULT_PARTITION
    transaction_id: str | None = None
    trace_id: str | None = None
    kind: str | None = None
    reference: str | None = None
    encoding: str | None = None
    headers: Mapping[str, str] | None = None
    producer_sub: str | None = None


@dataclass(slots=True)
class Batch:
    """Messages to push to one partition, in order."""

    queue: str
    partition: str
    columns: Columns

    @classmethod
    def of(cls, queue: str, payloads: Iterable[bytes], *, partition: str = DEFAULT_PARTITION, **columns: Any) -> Batch:
        """A batch from payloads and, by name, any other columns."""
        return cls(queue, partition, Columns(list(payloads), **columns))


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One stored message."""

    id: str
    queue: str
    partition: str
    partition_id: int
    seq: int
    created_at: datetime
    payload: bytes
    transaction_id: str
    """What the producer gave, or the message's own id."""
    trace_id: str | None = None
    kind: str | None = None
    reference: str | None = None
    encoding: str | None = None
    headers: Mapping[str, str] | None = None
    producer_sub: str | None = None
    attempt: int = 0
    """Which delivery this is, from 1; 0 when the message was read and not popped."""

    def json(self) -> Any:
        """The payload, decoded from JSON."""
        return msgspec.json.decode(self.payload)


_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


@dataclass(slots=True)
class Run:
    """Consecutive messages of one partition inside one segment, loaded."""

    queue: str
    partition: str
    partition_id: int
    first_seq: int
    segment: UUID
    ordinal: int
    created_at: datetime
    columns: Columns
    attempt: int = 0

    def __len__(self) -> int:
        return len(self.columns.payloads)

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.columns.payloads) - 1

    def message(self, offset: int) -> Message:
        columns = self.columns
        own_id = message_id(self.segment, self.ordinal + offset)
        headers = _at(columns.headers, offset)
        return Message(
            id=own_id,
            queue=self.queue,
            partition=self.partition,
            partition_id=self.partition_id,
            seq=self.first_seq + offset,
            created_at=self.created_at,
            payload=columns.payloads[offset],
            transaction_id=_at(columns.transaction_ids, offset) or own_id,
            trace_id=_at(columns.trace_ids, offset),
            kind=_at(columns.kinds, offset),
            reference=_at(columns.references, offset),
            encoding=_at(columns.encodings, offset),
            headers=None if headers is None else _decode_headers(headers),
            producer_sub=_at(columns.producer_subs, offset),
            attempt=self.attempt,
        )

    def messages(self) -> Iterator[Message]:
        return map(self.message, range(len(self.columns.payloads)))


def _at(column: list[Any] | None, offset: int) -> Any:
    return None if column is None else column[offset]


# --- Push -------------------------------------------------------------------------------------------------


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one pushed message."""

    index: int
    status: Literal["queued", "duplicate"]
    queue: str
    partition: str
    partition_id: int
    seq: int
    message_id: str
    """A duplicate names the first message with its transaction id."""
    transaction_id: str
    trace_id: str | None = None
    depth: int | None = None
    """Of a queue with a max_size: the pending messages after this push; None for a queue without."""
    remaining: int | None = None


@dataclass(slots=True)
class Placement:
    """Where a batch's new messages went: positions in the batch and the place of the first of them."""

    partition_id: int
    first_seq: int
    segment: UUID
    ordinal: int
    duplicates: Mapping[int, tuple[int, str]] | None = None
    """By position in the batch: seq and message id of the first message with that transaction id."""


@dataclass(slots=True, frozen=True)
class Occupancy:
    """How full a queue with a max_size is."""

    depth: int
    remaining: int


class PushResult(Sequence[Receipt]):
    """Receipts in input order, made when they are asked for."""

    __slots__ = ("_order", "_recent", "batches", "occupancy", "placements")

    def __init__(
        self,
        batches: Sequence[Batch],
        placements: Sequence[Placement],
        *,
        occupancy: Mapping[str, Occupancy] | None = None,
        order: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self.batches = batches
        self.placements = placements
        self.occupancy = occupancy or {}
        self._order = order
        self._recent: tuple[int, Placement, list[int]] | None = None
        """The batch that was last looked at, which usually has the next receipt, too; and where its duplicates are."""

    def __len__(self) -> int:
        return sum(len(batch.columns.payloads) for batch in self.batches)

    def in_order(self, order: Sequence[tuple[int, int]] | None) -> PushResult:
        """The same receipts in another order: for each, its batch and its position there."""
        return (
            self if order is None else PushResult(self.batches, self.placements, occupancy=self.occupancy, order=order)
        )

    @property
    def duplicates(self) -> int:
        """How many of the messages were duplicates."""
        return sum(len(p.duplicates) for p in self.placements if p.duplicates)

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._receipt(index, *self._locate(index))

    def __iter__(self) -> Iterator[Receipt]:
        if self._order is not None:
            for index, place in enumerate(self._order):
                yield self._receipt(index, *place)
            return
        index = 0
        for batch_index, batch in enumerate(self.batches):
            for position in range(len(batch.columns.payloads)):
                yield self._receipt(index, batch_index, position)
                index += 1

    def _locate(self, index: int) -> tuple[int, int]:
        if self._order is not None:
            return self._order[index]
        for batch_index, batch in enumerate(self.batches):
            if index < len(batch.columns.payloads):
                return batch_index, index
            index -= len(batch.columns.payloads)
        raise IndexError(index)

    def _receipt(self, index: int, batch_index: int, position: int) -> Receipt:
        if self._recent is None or self._recent[0] != batch_index:
            placement = self.placements[batch_index]
            self._recent = (batch_index, placement, sorted(placement.duplicates or ()))
        _, placement, duplicated = self._recent
        batch = self.batches[batch_index]
        earlier = placement.duplicates or {}
        occupancy = self.occupancy.get(batch.queue)
        if position in earlier:
            status: Literal["queued", "duplicate"] = "duplicate"
            seq, identity = earlier[position]
        else:
            status = "queued"
            offset = position - bisect_left(duplicated, position)
            seq = placement.first_seq + offset
            identity = message_id(placement.segment, placement.ordinal + offset)
        return Receipt(
            index=index,
            status=status,
            queue=batch.queue,
            partition=batch.partition,
            partition_id=placement.partition_id,
            seq=seq,
            message_id=identity,
            transaction_id=_at(batch.columns.transaction_ids, position) or identity,
            trace_id=_at(batch.columns.trace_ids, position),
            depth=occupancy.depth if occupancy else None,
            remaining=occupancy.remaining if occupancy else None,
        )


# --- Pop --------------------------------------------------------------------------------------------------


class Subscription(msgspec.Struct, frozen=True):
    """Where a group begins on a queue that it sees for the first time."""

    mode: SubscriptionMode = "all"
    from_at: datetime | None = None
    """With mode `from`: messages created at or after this time."""


class PopRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one consumer asks for: one queue, one partition of it, or all queues of a namespace and/or task."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    group: str = QUEUE_MODE
    batch: int = 1
    """Most messages, over all claimed partitions."""
    partitions: int = 1
    """Most partitions to claim."""
    lease_seconds: float | None = None
    """Instead of the queue's."""
    auto_ack: bool = False
    subscription: Subscription = Subscription()


@dataclass(slots=True)
class Popped:
    """The messages that one pop delivered, under one lease. Empty and without a lease when there was nothing."""

    group: str
    runs: list[Run] = field(default_factory=list)
    lease_id: str | None = None
    """None when nothing was popped, or when the pop acknowledged at once."""
    expires_at: datetime | None = None

    def __len__(self) -> int:
        return sum(len(run.columns.payloads) for run in self.runs)

    @property
    def partition_ids(self) -> list[int]:
        """The claimed partitions, in the order of their first message here."""
        return list(dict.fromkeys(run.partition_id for run in self.runs))

    def messages(self) -> Iterator[Message]:
        for run in self.runs:
            yield from run.messages()

    def payloads(self) -> list[bytes]:
        return [payload for run in self.runs for payload in run.columns.payloads]


class PendingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks whether a pop would find something."""

    queue: str
    partition: str | None = None
    group: str = QUEUE_MODE


# --- Ack and renew ----------------------------------------------------------------------------------------


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one delivery. Two forms:

    * by lease: `lease_id`, and optionally `partition_id` and `seq`; without a seq it speaks for all that the
      lease holds (completed: everything is done; otherwise: the first message not yet done);
    * by message: `partition_id` and `transaction_id`, for `group`; the lease is checked if `lease_id` is given.
    """

    lease_id: str | None = None
    partition_id: int | None = None
    seq: int | None = None
    transaction_id: str | None = None
    group: str = QUEUE_MODE
    status: AckStatus = "completed"
    error: str | None = None


class AckOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one ack."""

    index: int
    success: bool
    error: AckError | None = None
    noop: bool = False
    """A completed ack of something already done."""
    released: bool = False
    """The lease on the partition ended with this call."""
    dead: bool = False
    """The message became a dead letter."""
    messages: int = 0
    """How many messages this ack completed."""
    queue: str | None = None
    partition: str | None = None


ACK_ERROR_TEXTS: dict[AckError, str] = {
    "unresolvable": "unresolvable: no such message in this partition",
    "committed": "already committed: the message is below the cursor",
    "lease_lost": "the lease is not, or no longer, the live lease of this message",
    "clamped": "not committed: an earlier message of the same call was not completed",
}


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for more time. Never shortens a lease."""

    lease_id: str
    seconds: float | None = None
    """From now; None is the queue's lease time."""


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: str
    partitions: int
    """How many partition leases were extended; 0 when the lease is gone."""
    expires_at: datetime | None = None
    """The earliest deadline among them."""


@dataclass(slots=True)
class TransactionResult:
    acks: list[AckOutcome]
    pushed: PushResult


# --- Groups -----------------------------------------------------------------------------------------------


class Position(msgspec.Struct, frozen=True):
    """Where a seek goes."""

    kind: Literal["start", "end", "time", "seq", "current"]
    at: datetime | None = None
    """With kind `time`: what was created at or before this counts as done."""
    seq: int | None = None
    """With kind `seq`: the next message to deliver."""


class PartitionLag(msgspec.Struct, frozen=True, kw_only=True):
    """A group's place in one partition."""

    queue: str
    partition: str
    partition_id: int
    group: str
    acked: int
    last_seq: int
    lag: int
    """Messages that are there and not yet done."""
    oldest_at: datetime | None
    """When the first of them was created."""
    due_at: datetime | None
    """From when a pop finds something here; None when drained."""
    stopped: bool
    """Held for an operator, because a message was exhausted and the queue says `stop`."""
    attempts: int
    leased: bool
    consumed_at: datetime | None


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """What a group has before it in a queue."""

    queue: str
    group: str
    pending: int
    partitions_pending: int
    leased: int
    """How many of the pending messages are under a live lease."""


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A group on one queue."""

    name: str
    queue: str
    created_at: datetime
    subscription: Subscription
    partitions: int
    partitions_with_lag: int
    lag: int
    leases: int
    oldest_at: datetime | None


# --- Looking in -------------------------------------------------------------------------------------------


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    name: str
    namespace: str
    task: str
    options: QueueOptions
    created_at: datetime
    partitions: int
    messages: int
    """Stored messages."""
    pending: int
    """The lag of the group that is furthest behind; all stored messages while there is no group."""
    processing: int
    """Messages under a live lease, over all groups."""
    dead_letters: int


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    queue: str
    name: str
    created_at: datetime
    first_seq: int
    """The oldest stored message; last_seq + 1 when none is stored."""
    last_seq: int
    messages: int
    pending: int
    processing: int
    dead_letters: int
    oldest_at: datetime | None
    newest_at: datetime | None


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    partition: str | None = None
    status: MessageStatus | None = None
    from_at: datetime | None = None
    """Created at or after."""
    to_at: datetime | None = None
    """Created before."""


class GroupProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is with one message."""

    group: str
    consumed: bool
    lease_expires_at: datetime | None


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message with its status over all groups."""

    message: Message
    status: MessageStatus
    groups: list[GroupProgress]


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    items: list[MessageView]
    next_cursor: str | None
    """Give it back for the next page; None at the end. A page may be short, even empty, and still have one."""


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
    """How busy a queue is for one group."""

    queue: str
    group: str
    partitions: int
    partitions_leased: int
    partitions_ready: int
    """Due now and not leased: work that nobody has taken."""
    partitions_waiting: int
    """Due later: delayed, backing off, or held by a window."""
    partitions_stopped: int


# --- Dead letters -----------------------------------------------------------------------------------------


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    message: Message
    group: str
    attempts: int
    error: str | None
    failed_at: datetime


REDRIVEN_FROM = "lockstep-redriven-from"
"""The header that names the message whose dead letter was pushed again."""


def redriven(message: Message) -> Batch:
    """A dead message as it is pushed again: without a transaction id, because the old one is used up."""
    headers = msgspec.json.encode({**(message.headers or {}), REDRIVEN_FROM: message.id})
    columns = Columns([message.payload], headers=[headers])
    for name in ("trace_id", "kind", "reference", "encoding", "producer_sub"):
        if getattr(message, name) is not None:
            setattr(columns, f"{name}s", [getattr(message, name)])
    return Batch(message.queue, message.partition, columns)


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


# --- Consistency ------------------------------------------------------------------------------------------

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
    "depth_wrong",
]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something in the store that should not be."""

    kind: ProblemKind
    text: str
    repairable: bool
    repaired: bool = False
    queue: str | None = None
    partition_id: int | None = None
