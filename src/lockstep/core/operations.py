"""Operations: requests that were accepted while the server was busy, and are applied later, in order.

Requests that are queued together form a *bundle*, which is stored, claimed and finished as a unit. The id of an
operation is its bundle's UUIDv7 with the operation's ordinal in the low 16 bits; message ids derive from segment ids in
the same way.

applying.py says how they are applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from lockstep import errors
from lockstep.core.codec import Codec, unseal
from lockstep.core.ids import message_id, split_message_id
from lockstep.core.layouts import pack
from lockstep.core.messages import Appointment, Batch, Columns, NewSchedule, Occupancy, Placement, PushResult
from lockstep.core.records import Ack, AckOutcome
from lockstep.errors import (
    CorruptSegment,
    InvalidRequest,
    LockstepError,
)

OperationKind = Literal["push", "ack"]
OperationStatus = Literal["pending", "done", "failed"]
QueueReason = Literal["system_busy", "maintaining_order"]
QueuedAs = Literal["wait", "return"]
"""What a queued push does: wait until it is applied, or return at once."""
Order = list[tuple[int, int]]
"""For each message in input order: the index of its batch, and its position there."""

KINDS: tuple[OperationKind, ...] = ("ack", "push")
"""In the order in which they are applied."""
PRIORITIES: dict[OperationKind, int] = {"ack": 3, "push": 5}
ACK_LANE = 0
"""The lane of all acks. Acks are few and cheap, and two of them may concern the same lease."""


@dataclass(slots=True)
class NewOperation:
    """A request to apply later: either a push or acks."""

    batches: Sequence[Batch] = ()
    acks: Sequence[Ack] = ()
    order: Order | None = None
    """For each message in input order: the index of its batch, and its position there."""

    @property
    def kind(self) -> OperationKind:
        return "ack" if self.acks else "push"

    def messages(self) -> int:
        """The number of messages, or of acks."""
        return len(self.acks) or sum([len(batch.columns) for batch in self.batches])

    def bytes(self) -> int:
        return sum([batch.columns.payload_bytes() for batch in self.batches])

    def places(self) -> list[tuple[str, str]]:
        """Queue and partition of the messages to push now; scheduled messages have no order to keep."""
        return [(batch.queue, batch.partition) for batch in self.batches if batch.schedule is None]


class OperationFailure(Struct, frozen=True, array_like=True):
    """An error in its stored form."""

    code: str
    message: str
    details: dict[str, Any] = {}

    @classmethod
    def of(cls, error: LockstepError) -> OperationFailure:
        details = {name: value for name, value in error.details.items() if isinstance(value, str | int | float)}
        return cls(error.code, error.message, details)

    def error(self) -> LockstepError:
        kind = _CLASSES.get(self.code, LockstepError)
        return kind(self.message, **{name: value for name, value in self.details.items() if name != "message"})


def _classes(error: type[LockstepError]) -> Iterator[type[LockstepError]]:
    yield error
    for child in error.__subclasses__():
        yield from _classes(child)


_CLASSES = {error.code: error for error in reversed(list(_classes(errors.LockstepError)))}


class Placed(Struct, frozen=True, array_like=True):
    """Where one batch of a push went."""

    queue: str
    partition: str
    messages: int
    partition_id: int
    first_seq: int
    segment: UUID
    ordinal: int
    duplicates: dict[int, tuple[int, str]] | None = None
    appointments: list[tuple[int, datetime, bool]] | None = None

    @classmethod
    def of(cls, batch: Batch, placement: Placement) -> Placed:
        return cls(
            batch.queue,
            batch.partition,
            len(batch.columns),
            placement.partition_id,
            placement.first_seq,
            placement.segment,
            placement.ordinal,
            None if placement.duplicates is None else dict(placement.duplicates),
            None
            if placement.appointments is None
            else [(one.schedule_id, one.due_at, one.duplicate) for one in placement.appointments],
        )

    def placement(self) -> Placement:
        appointments = None if self.appointments is None else [Appointment(*one) for one in self.appointments]
        return Placement(
            self.partition_id, self.first_seq, self.segment, self.ordinal, self.duplicates or None, appointments
        )


class Outcome(Struct, frozen=True, kw_only=True, array_like=True):
    """The result of an operation: the places of a push, the outcomes of acks, or an error."""

    placed: list[Placed] | None = None
    occupancy: dict[str, tuple[int, int]] = {}
    order: list[tuple[int, int]] | None = None
    acks: list[AckOutcome] | None = None
    failure: OperationFailure | None = None

    @property
    def status(self) -> OperationStatus:
        return "done" if self.failure is None else "failed"

    def pushed(self, batches: Sequence[Batch] | None = None) -> PushResult:
        """The receipts of a push. Without the batches, they lack the producer's values. Raises the error of a failed
        push."""
        placed = self._succeeded().placed or []
        occupancy = {queue: Occupancy(*one) for queue, one in self.occupancy.items()}
        shown = [_hollow(one) for one in placed] if batches is None else batches
        order = self.order if batches is None else None
        return PushResult(shown, [one.placement() for one in placed], occupancy=occupancy, order=order)

    def outcomes(self) -> list[AckOutcome]:
        """The outcomes of acks. Raises the error of failed acks."""
        return self._succeeded().acks or []

    def _succeeded(self) -> Outcome:
        if self.failure is not None:
            raise self.failure.error()
        return self


def _hollow(placed: Placed) -> Batch:
    """A batch of which only the number of messages is known."""
    return Batch(placed.queue, placed.partition, Columns([b""] * placed.messages))


class Aim(Struct, frozen=True, array_like=True):
    """The target of an operation, known without decoding its content. Acks have none."""

    queues: list[str]
    partition: str | None
    partitions: int
    messages: int

    @classmethod
    def of(cls, operation: NewOperation) -> Aim:
        places = {(batch.queue, batch.partition) for batch in operation.batches}
        partition = next(iter(places))[1] if len(places) == 1 else None
        return cls(sorted({queue for queue, _ in places}), partition, len(places), operation.messages())


_UNKNOWN = Aim([], None, 0, 0)


class OperationInfo(Struct, frozen=True, kw_only=True):
    """An operation, as shown to callers."""

    id: str
    kind: OperationKind
    status: OperationStatus
    priority: int
    created_at: datetime
    queues: list[str] = []
    """The queues of a push; acks have none."""
    partition: str | None = None
    """The partition of a push, if there is only one."""
    partitions: int = 0
    messages: int = 0
    """The number of messages, or of acks."""
    position: int | None = None
    """While it waits, when requested by id: its position among the operations of its kind, from 1; None beyond some
    10,000."""
    due_at: datetime | None = None
    """While it waits: not applied before this time."""
    retries: int = 0
    completed_at: datetime | None = None
    worker: str | None = None
    """The server that applied it, or last tried to; for people."""
    error: str | None = None
    """Why it failed; or why the last attempt did not apply it."""
    error_code: str | None = None
    outcome: Outcome | None = None

    def is_among(self, status: OperationStatus | None, queue: str | None) -> bool:
        return status in (None, self.status) and (queue is None or queue in self.queues)


class OperationPage(Struct, frozen=True, kw_only=True):
    items: list[OperationInfo]
    next_cursor: str | None
    """Pass it to get the next page; None at the end. A page may be short, even empty, and still have a next page."""


class OperationDepth(Struct, frozen=True, kw_only=True):
    """How many operations of one kind wait."""

    kind: OperationKind
    operations: int = 0
    messages: int = 0
    bytes: int = 0
    oldest_at: datetime | None = None
    """When the oldest waiting operation was accepted."""


class OperationCounts(Struct, frozen=True, kw_only=True):
    pending: list[OperationDepth]
    """Each kind, in the order in which they are applied."""
    failed: int = 0
    """Failed operations that are kept."""

    def depth(self, kind: OperationKind) -> OperationDepth:
        return next(depth for depth in self.pending if depth.kind == kind)


class KindLoad(Struct, frozen=True, kw_only=True):
    """How busy a server process is with one kind of request."""

    kind: Literal["push", "ack", "pop"]
    answer: Literal["execute", "queue", "shed", "reject"]
    """What it does with the next request."""
    load: float
    """From 0; at 1 the load has reached the limit that the settings define."""
    seconds: float
    """How long it has been in this state."""
    queued: int
    """Requests queued and refused since the process started."""
    rejected: int


class OperationStats(Struct, frozen=True, kw_only=True):
    pending: list[OperationDepth]
    failed: int
    managed: bool
    """Whether this process manages its load."""
    load: list[KindLoad]
    applied: int
    """Operations that this process has applied since it started, including failed ones."""
    applied_failed: int
    applied_per_second: float
    """In recent seconds."""


def operation_cursor(serial: int, ordinal: int) -> str:
    """The cursor of the page after an operation."""
    return f"{serial}.{ordinal}"


def parse_operation_cursor(cursor: str | None) -> tuple[int, int]:
    """The serial and ordinal after which a page starts. Raises InvalidRequest."""
    if cursor is None:
        return 0, -1
    serial, _, ordinal = cursor.partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (serial, ordinal)):
        raise InvalidRequest(f"not a cursor of operations: {cursor[:64]!r}")
    return int(serial), int(ordinal)


def operation_ids(bundle: UUID, count: int) -> list[str]:
    return [message_id(bundle, ordinal) for ordinal in range(count)]


def split_operation_id(text: str) -> tuple[UUID, int]:
    """The bundle's UUID and the ordinal in an operation id. Raises InvalidRequest."""
    return split_message_id(text)


# --- The stored form ----------------------------------------------------------------------------------------


_Texts = list[str | None] | None
_OtherColumns = tuple[
    _Texts, _Texts, _Texts, _Texts, _Texts, list[bytes | None] | None, _Texts, list[datetime | None] | None
]


class _PackedBatch(Struct, array_like=True, gc=False):
    queue: str
    partition: str
    payloads: list[bytes]
    others: _OtherColumns | None = None
    """All columns after the payloads; None if there are none."""
    schedule: NewSchedule | None = None


class _PackedOperation(Struct, array_like=True, gc=False):
    batches: list[_PackedBatch] = []
    acks: list[Ack] = []
    order: list[tuple[int, int]] | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_operations = msgspec.msgpack.Decoder(list[_PackedOperation]).decode
_decode_aims = msgspec.msgpack.Decoder(list[Aim]).decode
_AIMS_PACKED_BYTES_MIN = 256
_decode_outcomes = msgspec.msgpack.Decoder(list[Outcome | None]).decode


def pack_operations(operations: Sequence[NewOperation]) -> bytes:
    """The requests of a bundle, uncompressed."""
    return _encode(
        [
            _PackedOperation(
                [_packed(batch) for batch in operation.batches],
                list(operation.acks),
                None if operation.order is None else list(operation.order),
            )
            for operation in operations
        ]
    )


def _packed(batch: Batch) -> _PackedBatch:
    columns = batch.columns
    if batch.schedule is None and columns.bare():
        return _PackedBatch(batch.queue, batch.partition, columns.payloads)
    others: Any = columns.all()[1:]
    return _PackedBatch(batch.queue, batch.partition, columns.payloads, others, batch.schedule)


def unpack_operations(packed: bytes) -> list[NewOperation]:
    """Raises CorruptSegment."""
    try:
        decoded = _decode_operations(packed)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptSegment(f"stored operations cannot be decoded: {error}") from error
    return [NewOperation([_batch(one) for one in each.batches], each.acks, each.order) for each in decoded]


def _batch(one: _PackedBatch) -> Batch:
    others: Any = one.others or ()
    return Batch(one.queue, one.partition, Columns(one.payloads, *others), one.schedule)


def pack_aims(operations: Sequence[NewOperation]) -> bytes:
    packed = _encode([Aim.of(operation) for operation in operations])
    sealed = pack(packed) if len(packed) >= _AIMS_PACKED_BYTES_MIN else None
    return b"\0" + packed if sealed is None else b"\1" + sealed


def unpack_aims(packed: bytes | None, count: int) -> list[Aim]:
    """By ordinal; empty where aims were not stored."""
    if packed is None:
        return [_UNKNOWN] * count
    return _decode_aims(unseal(Codec.PACKED, packed[1:]) if packed[0] else packed[1:])


def pack_outcomes(outcomes: Sequence[Outcome | None]) -> bytes:
    return _encode(outcomes)


def unpack_outcomes(packed: bytes | None, count: int) -> list[Outcome | None]:
    """By ordinal; None for operations not applied yet. Raises CorruptSegment."""
    if packed is None:
        return [None] * count
    try:
        return _decode_outcomes(packed)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptSegment(f"the results of operations cannot be decoded: {error}") from error
