"""Messages, and the results of pushes.

Messages travel as columns: one list per field for all messages of a partition. Hot paths slice and join these lists and
never look at a single message; `Message` and `Receipt` are created only on demand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, overload
from uuid import UUID

import msgspec

from lockstep.core.ids import message_id
from lockstep.core.layouts import chained, decompress, joined_bytes, payloads_of
from lockstep.core.names import DEFAULT_PARTITION
from lockstep.errors import InvalidRequest

CHAINED_BYTES_MIN = 8 * 1024
"""Layouts below this size are worth being compressed together with others."""


@dataclass(slots=True)
class Block:
    """Messages in packed form: the compressed layout of core/codec.py, fully validated."""

    body: bytes
    layout_bytes: int
    count: int
    mask: int
    """The columns that the layout has."""
    payload_bytes: int
    """All payloads together."""
    payload_bytes_max: int
    """The largest payload."""
    layout: bytes | None = None
    """The layout, where it is kept for the first use of the payloads."""
    _payloads: list[bytes] | None = None

    def payloads(self) -> list[bytes]:
        """The payloads, unpacked when somebody asks for them."""
        if self._payloads is None:
            self._payloads = payloads_of(decompress(self.body) if self.layout is None else self.layout)
            self.layout = None
        return self._payloads


@dataclass(frozen=True, slots=True)
class BlockPart:
    """Consecutive messages of a block."""

    block: Block
    start: int
    count: int
    payload_bytes: int

    def payloads(self) -> list[bytes]:
        whole = self.block.payloads()
        return whole if self.is_whole() else whole[self.start : self.start + self.count]

    def is_whole(self) -> bool:
        return self.count == self.block.count


@dataclass(slots=True)
class Columns:
    """Messages as columns: lists of one length; a column that no message uses is None."""

    payloads: list[bytes]
    transaction_ids: list[str | None] | None = None
    trace_ids: list[str | None] | None = None
    kinds: list[str | None] | None = None
    references: list[str | None] | None = None
    encodings: list[str | None] | None = None
    """None means JSON; anything else names the format of the payload's opaque bytes."""
    headers: list[bytes | None] | None = None
    """A JSON object of strings, encoded."""
    producer_subs: list[str | None] | None = None
    expires_at: list[datetime | timedelta | None] | None = None
    """None: as the queue's options say. The engine converts a duration to a time, so that a store sees only times."""
    part: BlockPart | None = field(default=None, init=False, compare=False, repr=False)
    """The packed form of the same messages, if there is one. Columns derived from these do not inherit it, because
    their content may differ. With it, the payloads are unpacked on their first use."""

    def __len__(self) -> int:
        return len(self.payloads) if self.part is None else self.part.count

    if not TYPE_CHECKING:  # it would hide misspelled names from the type checker

        def __getattr__(self, name: str) -> Any:
            """Called for what is not set: payloads that nobody has used yet."""
            if name != "payloads":
                raise AttributeError(name)
            assert self.part is not None
            self.payloads = self.part.payloads()
            return self.payloads

    def lie_in(self, part: BlockPart) -> None:
        """The payloads are those of a part of a block, from where they are unpacked when they are needed."""
        self.part = part
        del self.payloads

    def payload_bytes(self) -> int:
        return sum(map(len, self.payloads)) if self.part is None else self.part.payload_bytes

    def bare(self) -> bool:
        """Whether there are only payloads."""
        return (
            self.transaction_ids is None
            and self.trace_ids is None
            and self.kinds is None
            and self.references is None
            and self.encodings is None
            and self.headers is None
            and self.producer_subs is None
            and self.expires_at is None
        )

    def slice(self, start: int, stop: int) -> Columns:
        if start == 0 and stop >= len(self):
            return self
        described = [None if column is None else column[start:stop] for column in self.described()]
        return Columns(self.payloads[start:stop], *described)

    def split(self, counts: Sequence[int]) -> Iterator[Columns]:
        """Consecutive slices. Those of a block remain parts of it."""
        if len(counts) == 1:
            yield self
            return
        part, start = self.part, 0
        for count in counts:
            columns = self.slice(start, start + count)
            if part is not None:
                size = sum(map(len, columns.payloads))
                columns.part = BlockPart(part.block, part.start + start, count, size)
            yield columns
            start += count

    def take(self, positions: Sequence[int]) -> Columns:
        return Columns(*[None if column is None else [column[i] for i in positions] for column in self.all()])  # type: ignore[arg-type]

    def all(self) -> tuple[list[Any] | None, ...]:
        """Every column, in the order of COLUMN_NAMES."""
        return (self.payloads, *self.described())

    def described(self) -> tuple[list[Any] | None, ...]:
        """Every column but the payloads, in the order of COLUMN_NAMES."""
        return (
            self.transaction_ids,
            self.trace_ids,
            self.kinds,
            self.references,
            self.encodings,
            self.headers,
            self.producer_subs,
            self.expires_at,
        )


COLUMNS_OF_FIELDS = {
    "payload": "payloads",
    "transaction_id": "transaction_ids",
    "trace_id": "trace_ids",
    "kind": "kinds",
    "reference": "references",
    "encoding": "encodings",
    "headers": "headers",
    "producer_sub": "producer_subs",
    "expires_at": "expires_at",
}
"""Maps the name of a message field to its column."""

COLUMN_NAMES = tuple(COLUMNS_OF_FIELDS.values())


def join_columns(parts: Sequence[Columns]) -> Columns:
    """Join the messages of all parts, in order; missing values of a column that some part has become None."""
    if len(parts) == 1:
        return parts[0]
    part = _joined_part(parts)
    joined = Columns([] if part is not None else list(chain.from_iterable([part.payloads for part in parts])))
    if part is not None:
        joined.lie_in(part)
    if all([part.bare() for part in parts]):
        return joined
    for name in COLUMN_NAMES[1:]:
        columns = [getattr(part, name) for part in parts]
        if any(column is not None for column in columns):
            filled = (c if c is not None else [None] * len(p) for c, p in zip(columns, parts, strict=True))
            setattr(joined, name, list(chain.from_iterable(filled)))
    return joined


def _joined_part(parts: Sequence[Columns]) -> BlockPart | None:
    """The part of a block that all of them form together, one after the other: of one that is there, or of a chain of
    whole ones."""
    blocks: list[Block] = []
    start = upto = 0
    for columns in parts:
        part = columns.part
        if part is None:
            return None
        if not blocks:
            start = part.start
        elif part.block is not blocks[-1]:
            if start or upto != blocks[-1].count:
                return None
            upto = 0
        if not blocks or part.block is not blocks[-1]:
            blocks.append(part.block)
            upto = part.start
        if part.start != upto:
            return None
        upto += part.count
    if len(blocks) == 1:
        return BlockPart(blocks[0], start, upto - start, sum([one.payload_bytes() for one in parts]))
    if start or upto != blocks[-1].count or not _may_be_chained(blocks):
        return None
    block = _chain(blocks)
    return BlockPart(block, 0, block.count, block.payload_bytes)


def _may_be_chained(blocks: Sequence[Block]) -> bool:
    return len({block.mask for block in blocks}) == 1 and min([b.layout_bytes for b in blocks]) >= CHAINED_BYTES_MIN


def _chain(blocks: Sequence[Block]) -> Block:
    return Block(
        chained([block.body for block in blocks]),
        joined_bytes([block.layout_bytes for block in blocks]),
        sum([block.count for block in blocks]),
        blocks[0].mask,
        sum([block.payload_bytes for block in blocks]),
        max([block.payload_bytes_max for block in blocks]),
    )


def check_shape(columns: object) -> Columns:
    """Check that each column is a list with a value for every message, and return the columns. Raises
    InvalidRequest.
    """
    if not isinstance(columns, Columns):
        raise InvalidRequest(f"the columns of a batch must be Columns, not {type(columns).__name__}")
    if columns.part is not None:
        return columns  # decoded from a block
    for name, column in zip(COLUMN_NAMES, columns.all(), strict=True):
        if column is None and name != "payloads":
            continue
        if not isinstance(column, list):
            raise InvalidRequest(f"the column {name} must be a list, not {type(column).__name__}")
        if len(column) != len(columns.payloads):
            text = f"the column {name} has {len(column)} values for {len(columns.payloads)} messages"
            raise InvalidRequest(text)
    return columns


def counts_of(columns: Sequence[Columns]) -> list[int]:
    """How many messages each of these has; for many of them, which a call of len() each would slow down."""
    return [len(one.payloads) if one.part is None else one.part.count for one in columns]


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer may set on a message."""

    transaction_id: str | None = None
    trace_id: str | None = None
    kind: str | None = None
    reference: str | None = None
    encoding: str | None = None
    headers: Mapping[str, str] | None = None


class NewMessage(Described, frozen=True, kw_only=True):
    """One message to push."""

    queue: str
    payload: bytes
    partition: str = DEFAULT_PARTITION
    producer_sub: str | None = None
    expires_at: datetime | None = None
    """The message is not delivered from this time on, whatever the queue's options say; alternatively, `expire_seconds`
    from now.
    """
    expire_seconds: float | None = None
    deliver_at: datetime | None = None
    """The message is not delivered before this time; alternatively, `delay_seconds` from now."""
    delay_seconds: float | None = None
    schedule_key: str | None = None
    """Identifies the message while it is scheduled, to find, cancel or reschedule it; unique in its queue."""


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """When to deliver messages: at a time or after a delay."""

    deliver_at: datetime | None = None
    delay_seconds: float | None = None
    key: str | None = None
    """Only for a single message."""


def schedule_of(message: NewMessage) -> NewSchedule | None:
    """When to deliver the message; None: at once."""
    if message.deliver_at is None and message.delay_seconds is None and message.schedule_key is None:
        return None
    return NewSchedule(deliver_at=message.deliver_at, delay_seconds=message.delay_seconds, key=message.schedule_key)


@dataclass(slots=True)
class Batch:
    """Messages to push to one partition, in order."""

    queue: str
    partition: str
    columns: Columns
    schedule: NewSchedule | None = None
    """None: deliver at once."""

    @classmethod
    def of(cls, queue: str, payloads: Iterable[bytes], *, partition: str = DEFAULT_PARTITION, **columns: Any) -> Batch:
        """Create a batch from payloads and other columns by name."""
        return cls(queue, partition, Columns(list(payloads), **columns))


class DeliveryFields(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """What is known about one delivery: the same for all messages of a run. A field that is added here is in the rows
    of pops (`lockstep.popped` has a column of its name) and in their answers over HTTP; `Message` has it, too."""

    attempt: int
    """The number of this delivery, from 1; 0 if the message was read rather than popped."""


NOT_DELIVERED = DeliveryFields(0)


class Message(Described, frozen=True, kw_only=True):
    """One stored message."""

    id: str
    queue: str
    partition: str
    partition_id: int
    seq: int
    created_at: datetime
    payload: bytes
    transaction_id: str
    """The producer's id, or the message's own id."""
    producer_sub: str | None = None
    expires_at: datetime | None = None
    """Set if the producer gave this message a time of its own."""
    attempt: int = NOT_DELIVERED.attempt
    """As in `DeliveryFields`."""

    def json(self) -> Any:
        """The payload, decoded from JSON."""
        return msgspec.json.decode(self.payload)


_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
_NO_SEGMENT = UUID(int=0)


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
    delivery: DeliveryFields = NOT_DELIVERED

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.columns) - 1

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
            expires_at=_at(columns.expires_at, offset),
            attempt=self.delivery.attempt,
        )

    def messages(self) -> Iterator[Message]:
        return map(self.message, range(len(self.columns)))


def _at(column: list[Any] | None, offset: int) -> Any:
    return None if column is None else column[offset]


REDRIVEN_FROM = "lockstep-redriven-from"
"""The header with the id of the message whose dead letter was redriven."""


def redriven(message: Message) -> Batch:
    """A dead message as it is pushed again: without a transaction id, because the old one is used up."""
    return again(message, message.queue, message.partition, {**(message.headers or {}), REDRIVEN_FROM: message.id})


def again(message: Message, queue: str, partition: str, headers: Mapping[str, str]) -> Batch:
    """A message as a new message: without its transaction id, which is used up, and without its expiry time."""
    columns = Columns([message.payload], headers=[msgspec.json.encode(headers)])
    for name in ("trace_id", "kind", "reference", "encoding", "producer_sub"):
        if getattr(message, name) is not None:
            setattr(columns, f"{name}s", [getattr(message, name)])
    return Batch(queue, partition, columns)


ReceiptStatus = Literal["queued", "duplicate", "scheduled", "buffered", "deferred"]


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of pushing one message."""

    index: int
    status: ReceiptStatus
    """`queued`: stored in its queue. `deferred`: accepted by a busy server as an operation that is applied later.
    `buffered`: on a server's disk until the database is available."""
    queue: str
    partition: str
    partition_id: int
    """0, like the seq, and without a message id, while the message is scheduled or buffered."""
    seq: int
    message_id: str
    """For a duplicate: the first message with its transaction id."""
    transaction_id: str
    trace_id: str | None = None
    depth: int | None = None
    """For a queue with a max_size: the number of pending messages after this push; otherwise None."""
    remaining: int | None = None
    schedule_id: int | None = None
    """For a scheduled message: the id for cancelling it; for a duplicate, that of the message already scheduled."""
    due_at: datetime | None = None
    operation_id: str | None = None
    """For a push that waits to be applied: the id of the operation; nothing else is known yet."""


class QueuedPush(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was accepted and is applied later."""

    operation_id: str
    position: int
    """Approximate position in the queue of operations."""
    estimated_wait_seconds: float
    reason: Literal["system_busy", "maintaining_order"]


@dataclass(frozen=True, slots=True)
class Appointment:
    """The schedule of a message."""

    schedule_id: int
    due_at: datetime
    duplicate: bool = False
    """It belongs to another message with the same key or transaction id."""


@dataclass(slots=True)
class Placement:
    """Where the new messages of a batch went: their positions in the batch, and the place of the first one."""

    partition_id: int
    first_seq: int
    segment: UUID
    ordinal: int
    duplicates: Mapping[int, tuple[int, str]] | None = None
    """By position in the batch: seq and message id of the first message with that transaction id."""
    appointments: Sequence[Appointment] | None = None
    """By position in the batch, if its messages are scheduled; no other field is set then."""
    buffered: bool = False
    """The batch is on a server's disk until the database accepts it; no other field is set then."""

    @classmethod
    def of_buffered(cls) -> Placement:
        return cls(0, 0, _NO_SEGMENT, 0, buffered=True)

    @classmethod
    def waiting(cls, appointments: Sequence[Appointment]) -> Placement:
        return cls(0, 0, _NO_SEGMENT, 0, appointments=appointments)


@dataclass(slots=True, frozen=True)
class Occupancy:
    """How full a queue with a max_size is."""

    depth: int
    remaining: int


class _PlacementSlice(Sequence[Placement]):
    """Part of the placements of a call that several requests shared. Computed on demand, because few callers look at
    it.
    """

    __slots__ = ("_found", "_start", "_stop", "_whole")

    def __init__(self, whole: Sequence[Placement], start: int, stop: int) -> None:
        self._whole: Sequence[Placement] | None = whole
        self._start, self._stop = start, stop
        self._found: Sequence[Placement] = ()

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, index: int) -> Placement: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Placement]: ...
    def __getitem__(self, index: int | slice) -> Placement | Sequence[Placement]:
        return self._all()[index]

    def __iter__(self) -> Iterator[Placement]:
        return iter(self._all())

    def _all(self) -> Sequence[Placement]:
        if self._whole is not None:
            self._found = self._whole[self._start : self._stop]
            self._whole = None  # so that other requests' results can be freed
        return self._found


class PushResult(Sequence[Receipt]):
    """Receipts in input order, created on demand."""

    __slots__ = ("_order", "_recent", "batches", "occupancy", "operation", "placements")

    def __init__(
        self,
        batches: Sequence[Batch],
        placements: Sequence[Placement],
        *,
        occupancy: Mapping[str, Occupancy] | None = None,
        order: Sequence[tuple[int, int]] | None = None,
        operation: QueuedPush | None = None,
    ) -> None:
        """With an operation there are no placements: all of it waits to be applied."""
        self.operation = operation
        self.batches = batches
        self.placements = placements
        self.occupancy = occupancy or {}
        self._order = order
        self._recent: tuple[int, Placement, list[int]] | None = None
        """The batch used last, which usually has the next receipt as well, and the positions of its duplicates."""

    def __len__(self) -> int:
        return sum(len(batch.columns) for batch in self.batches)

    def in_order(self, order: Sequence[tuple[int, int]] | None) -> PushResult:
        """The same receipts in another order: each entry is a batch and a position in it."""
        if order is None:
            return self
        return PushResult(
            self.batches, self.placements, occupancy=self.occupancy, order=order, operation=self.operation
        )

    def part(self, start: int, stop: int) -> PushResult:
        """The receipts of the batches from `start` to `stop`."""
        part = _PlacementSlice(self.placements, start, stop)
        return PushResult(self.batches[start:stop], part, occupancy=self.occupancy)

    @property
    def buffered(self) -> bool:
        """Whether everything is on a server's disk and nothing in the store."""
        return len(self.placements) > 0 and self.placements[0].buffered

    @property
    def duplicates(self) -> int:
        """The number of messages that were duplicates."""
        found = 0
        for placement in self.placements:
            if placement.duplicates:
                found += len(placement.duplicates)
            elif placement.appointments:
                found += sum([appointment.duplicate for appointment in placement.appointments])
        return found

    def first_due_at(self) -> datetime | None:
        """When the first scheduled message is due; None if none is scheduled."""
        return min((one.due_at for p in self.placements for one in p.appointments or ()), default=None)

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
            for position in range(len(batch.columns)):
                yield self._receipt(index, batch_index, position)
                index += 1

    def _locate(self, index: int) -> tuple[int, int]:
        if self._order is not None:
            return self._order[index]
        for batch_index, batch in enumerate(self.batches):
            if index < len(batch.columns):
                return batch_index, index
            index -= len(batch.columns)
        raise IndexError(index)

    def _receipt(self, index: int, batch_index: int, position: int) -> Receipt:
        if self.operation is not None:
            batch = self.batches[batch_index]
            return _unplaced_receipt(index, batch, position, "deferred", operation_id=self.operation.operation_id)
        if self._recent is None or self._recent[0] != batch_index:
            placement = self.placements[batch_index]
            self._recent = (batch_index, placement, sorted(placement.duplicates or ()))
        _, placement, duplicated = self._recent
        batch = self.batches[batch_index]
        if placement.appointments is not None:
            return _waiting_receipt(index, batch, position, placement.appointments[position])
        if placement.buffered:
            return _unplaced_receipt(index, batch, position, "buffered")
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


def _unplaced_receipt(index: int, batch: Batch, position: int, status: ReceiptStatus, **others: Any) -> Receipt:
    """The receipt of a message that is not in its partition yet."""
    return Receipt(
        index=index,
        status=status,
        queue=batch.queue,
        partition=batch.partition,
        partition_id=0,
        seq=0,
        message_id="",
        transaction_id=_at(batch.columns.transaction_ids, position) or "",
        trace_id=_at(batch.columns.trace_ids, position),
        **others,
    )


def _waiting_receipt(index: int, batch: Batch, position: int, appointment: Appointment) -> Receipt:
    status: ReceiptStatus = "duplicate" if appointment.duplicate else "scheduled"
    return _unplaced_receipt(
        index, batch, position, status, schedule_id=appointment.schedule_id, due_at=appointment.due_at
    )
