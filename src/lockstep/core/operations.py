"""Operations: requests that were accepted while the server was busy, and are applied later, in order.

Requests that are queued together make one *bundle*, which is stored, claimed and marked as one. The id of an operation
is its bundle's UUIDv7 with the operation's ordinal in the low 16 bits, as a message's id is that of its segment.

`applying` says how bundles are applied, for any store: all requests of a kind as one call, if that works; else each for
itself, so that one that is at fault fails alone. A request whose queue is full, or whose partition is held, is tried
again later, and so is everything that comes after it in the same partitions; when it has been tried often enough it
fails, and what it held up goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from lockstep import errors
from lockstep.core.ids import message_id, split_message_id
from lockstep.core.messages import Appointment, Batch, Columns, NewSchedule, Occupancy, Placement, PushResult
from lockstep.core.records import Ack, AckOutcome
from lockstep.errors import (
    CorruptSegment,
    EncryptionUnavailable,
    InvalidRequest,
    LockstepError,
    LockTimeout,
    QueueFull,
    Unavailable,
)

OperationKind = Literal["push", "ack"]
OperationStatus = Literal["pending", "done", "failed"]
QueueReason = Literal["system_busy", "maintaining_order"]
QueuedAs = Literal["wait", "return"]
"""What a push does that is queued: wait until it is applied, or return at once."""
Order = Sequence[tuple[int, int]]

KINDS: tuple[OperationKind, ...] = ("ack", "push")
"""In the order in which they are applied."""
PRIORITIES: dict[OperationKind, int] = {"ack": 3, "push": 5}
ACK_LANE = 0
"""The lane of all acks: they are few and cheap, and one may speak of the same lease as another."""

_ERRORS = (QueueFull, LockTimeout, EncryptionUnavailable)
"""What may be otherwise a little later."""


@dataclass(slots=True)
class NewOperation:
    """A request that is to be applied later: either a push or acks."""

    batches: Sequence[Batch] = ()
    acks: Sequence[Ack] = ()
    order: Order | None = None
    """For each message in input order: the index of its batch, and its position there."""

    @property
    def kind(self) -> OperationKind:
        return "ack" if self.acks else "push"

    def messages(self) -> int:
        """Messages, or acks."""
        return len(self.acks) or sum([len(batch.columns.payloads) for batch in self.batches])

    def bytes(self) -> int:
        return sum([sum(map(len, batch.columns.payloads)) for batch in self.batches])

    def places(self) -> list[tuple[str, str]]:
        """Queue and partition of what is pushed at once: what waits for its time has no order to keep."""
        return [(batch.queue, batch.partition) for batch in self.batches if batch.schedule is None]


class OperationFailure(Struct, frozen=True, array_like=True):
    """An error as it is kept."""

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
    """Where a batch of a push went."""

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
    """What became of an operation: one of a push's places, acks' outcomes, and an error."""

    placed: list[Placed] | None = None
    occupancy: dict[str, tuple[int, int]] = {}
    order: list[tuple[int, int]] | None = None
    acks: list[AckOutcome] | None = None
    failure: OperationFailure | None = None

    @property
    def status(self) -> OperationStatus:
        return "done" if self.failure is None else "failed"

    def pushed(self, batches: Sequence[Batch] | None = None) -> PushResult:
        """The receipts of a push. Without the batches, those do not tell what the producer gave. Raises what it
        failed with."""
        placed = self._succeeded().placed or []
        occupancy = {queue: Occupancy(*one) for queue, one in self.occupancy.items()}
        shown = [_hollow(one) for one in placed] if batches is None else batches
        order = self.order if batches is None else None
        return PushResult(shown, [one.placement() for one in placed], occupancy=occupancy, order=order)

    def outcomes(self) -> list[AckOutcome]:
        """Those of acks. Raises what they failed with."""
        return self._succeeded().acks or []

    def _succeeded(self) -> Outcome:
        if self.failure is not None:
            raise self.failure.error()
        return self


def _hollow(placed: Placed) -> Batch:
    """A batch of which only the number of messages is known."""
    return Batch(placed.queue, placed.partition, Columns([b""] * placed.messages))


class OperationInfo(Struct, frozen=True, kw_only=True):
    """An operation, for whoever asks what became of it."""

    id: str
    kind: OperationKind
    status: OperationStatus
    priority: int
    created_at: datetime
    position: int | None = None
    """Of one that waits, where a single one is asked for: its place among those of its kind, from 1."""
    due_at: datetime | None = None
    """Of one that waits: not before this time."""
    retries: int = 0
    completed_at: datetime | None = None
    worker: str | None = None
    """Who applied it, or tried last; for people."""
    error: str | None = None
    """What it failed with; or why it was not applied when that was last tried."""
    error_code: str | None = None
    outcome: Outcome | None = None


class OperationPage(Struct, frozen=True, kw_only=True):
    items: list[OperationInfo]
    next_cursor: str | None
    """Give it back for the next page; None at the end."""


class OperationDepth(Struct, frozen=True, kw_only=True):
    """How much of one kind waits."""

    kind: OperationKind
    operations: int = 0
    messages: int = 0
    bytes: int = 0
    oldest_at: datetime | None = None
    """When the oldest was accepted."""


class OperationCounts(Struct, frozen=True, kw_only=True):
    pending: list[OperationDepth]
    """Each kind, in the order in which they are applied."""
    failed: int = 0
    """Operations that failed and are kept."""

    def depth(self, kind: OperationKind) -> OperationDepth:
        return next(depth for depth in self.pending if depth.kind == kind)


class KindLoad(Struct, frozen=True, kw_only=True):
    """How busy a server process is with one kind of request."""

    kind: Literal["push", "ack", "pop"]
    answer: Literal["execute", "queue", "shed", "reject"]
    """What it does with the next one."""
    load: float
    """From 0 on; at 1 it is as bad as the settings allow."""
    seconds: float
    """For how long it has answered so."""
    queued: int
    """Requests that it has queued, and refused, since it began."""
    rejected: int


class OperationStats(Struct, frozen=True, kw_only=True):
    pending: list[OperationDepth]
    failed: int
    managed: bool
    """Whether this process manages its load."""
    load: list[KindLoad]
    applied: int
    """Operations that this process has applied since it began; those that failed are among them."""
    applied_failed: int
    applied_per_second: float
    """Of late."""


def operation_cursor(serial: int, ordinal: int) -> str:
    """The cursor of the page that begins after an operation."""
    return f"{serial}.{ordinal}"


def parse_operation_cursor(cursor: str | None) -> tuple[int, int]:
    """Serial and ordinal after which a page begins. Raises InvalidRequest."""
    if cursor is None:
        return 0, -1
    serial, _, ordinal = cursor.partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (serial, ordinal)):
        raise InvalidRequest(f"not a cursor of operations: {cursor[:64]!r}")
    return int(serial), int(ordinal)


def operation_ids(bundle: UUID, count: int) -> list[str]:
    return [message_id(bundle, ordinal) for ordinal in range(count)]


def split_operation_id(text: str) -> tuple[UUID, int]:
    """The bundle's UUID and the ordinal that an operation id stands for. Raises InvalidRequest."""
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
    """All columns after the payloads; None if there is none."""
    schedule: NewSchedule | None = None


class _PackedOperation(Struct, array_like=True, gc=False):
    batches: list[_PackedBatch] = []
    acks: list[Ack] = []
    order: list[tuple[int, int]] | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_operations = msgspec.msgpack.Decoder(list[_PackedOperation]).decode
_decode_outcomes = msgspec.msgpack.Decoder(list[Outcome | None]).decode


def pack_operations(operations: Sequence[NewOperation]) -> bytes:
    """The requests of a bundle, not compressed."""
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


def pack_outcomes(outcomes: Sequence[Outcome | None]) -> bytes:
    return _encode(outcomes)


def unpack_outcomes(packed: bytes | None, count: int) -> list[Outcome | None]:
    """By ordinal; None for what is not applied yet. Raises CorruptSegment."""
    if packed is None:
        return [None] * count
    try:
        return _decode_outcomes(packed)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptSegment(f"the results of operations cannot be decoded: {error}") from error


# --- How bundles are applied --------------------------------------------------------------------------------


class ApplyLimits(Struct, frozen=True, kw_only=True):
    """Of one call that applies operations."""

    messages_max: int = 10_000
    bytes_max: int = 16 * 1024**2
    retries_max: int = 20
    """How often a request is tried again whose queue is full; then it fails."""
    retry_seconds_min: float = 0.1
    """The first wait before it is tried again; it doubles."""
    retry_seconds_max: float = 10.0
    lock_seconds: float = 0.25
    """Longest wait for a partition that somebody holds."""
    timeout_seconds: float = 30.0
    """A processor that hangs for longer loses what it has claimed."""

    def wait_seconds(self, retries: int) -> float:
        return min(self.retry_seconds_min * 2.0 ** min(retries, 30), self.retry_seconds_max)


@dataclass(slots=True)
class Bundle:
    """Requests that were queued together, as they are applied."""

    uuid: UUID
    operations: list[NewOperation]
    outcomes: list[Outcome | None]
    retries: int = 0
    lanes: frozenset[int] = frozenset()
    problem: LockstepError | None = None
    """Why its operations cannot be read, if so; they are empty then."""
    error: str | None = None
    """Why something of it is left, if it is."""
    charged: bool = False
    """Whether that counts as one of its retries."""

    @property
    def left(self) -> list[NewOperation]:
        """What is still to be applied."""
        return [one for one, outcome in zip(self.operations, self.outcomes, strict=True) if outcome is None]

    @property
    def failed(self) -> int:
        return sum([outcome is not None and outcome.failure is not None for outcome in self.outcomes])


@dataclass(slots=True)
class Applied:
    """What one call has applied."""

    settled: list[tuple[UUID, list[Outcome]]] = field(default_factory=list)
    """Bundles that have ended, with all their outcomes."""
    operations: int = 0
    messages: int = 0
    failed: int = 0
    postponed: int = 0
    """Operations that are tried again later."""
    partitions_by_queue: dict[str, set[str]] = field(default_factory=dict)
    """To which something was pushed."""
    messages_by_queue: dict[str, int] = field(default_factory=dict)
    """How much of it."""
    first_due_at: datetime | None = None
    """The earliest of what was scheduled."""
    acks: list[AckOutcome] = field(default_factory=list)
    more: bool = False
    """There may be more that can be applied now."""

    def add(self, bundle: Bundle, before: Sequence[Outcome | None]) -> None:
        """Count what is new in a bundle; `before` are the outcomes that it had."""
        left = len(bundle.left)
        self.postponed += left
        if not left:
            self.settled.append((bundle.uuid, [outcome for outcome in bundle.outcomes if outcome is not None]))
        for operation, old, new in zip(bundle.operations, before, bundle.outcomes, strict=True):
            if new is not None and old is None:
                self._add_outcome(operation, new)

    def _add_outcome(self, operation: NewOperation, outcome: Outcome) -> None:
        self.operations += 1
        if outcome.failure is not None:
            self.failed += 1
            return
        self.messages += operation.messages()
        self.acks += outcome.acks or []
        for placed in outcome.placed or ():
            if placed.appointments is None:
                self.partitions_by_queue.setdefault(placed.queue, set()).add(placed.partition)
                before = self.messages_by_queue.get(placed.queue, 0)
                self.messages_by_queue[placed.queue] = before + placed.messages
            else:
                due = [one[1] for one in placed.appointments]
                self.first_due_at = min([*due, *([self.first_due_at] if self.first_due_at else [])])


Attempt = Sequence[NewOperation]
"""Operations to apply as one call: the answer is a PushResult, a list of AckOutcome, or the error."""
Answer = PushResult | list[AckOutcome] | LockstepError
Applying = Generator[Attempt, Answer, None]


def applying(bundles: Sequence[Bundle], limits: ApplyLimits) -> Applying:
    """Apply the bundles, in order: yields attempts, and takes their answers; fills in the outcomes.

    An attempt that fails must have changed nothing. Raises Unavailable: then all of it is to be undone.
    """
    for bundle in bundles:
        bundle.error, bundle.charged = None, False
    readable = _readable(bundles, limits)
    waiting = [(bundle, ordinal) for bundle in readable for ordinal, o in enumerate(bundle.outcomes) if o is None]
    for call in _calls(waiting):
        answer = yield [bundle.operations[ordinal] for bundle, ordinal in call]
        if isinstance(answer, LockstepError):
            yield from _one_by_one(call, limits, answer)
        else:
            _settle(call, answer)
    for bundle in bundles:
        bundle.retries += bundle.charged


def _readable(bundles: Sequence[Bundle], limits: ApplyLimits) -> list[Bundle]:
    """Those that can be applied. One that cannot be read for want of a key is left for a server that has it, with all
    that comes after it in its lanes; others that cannot be read fail."""
    held: set[int] = set()
    readable = []
    for bundle in bundles:
        if bundle.problem is None and held.isdisjoint(bundle.lanes):
            readable.append(bundle)
        elif bundle.problem is None or _may_be_otherwise(bundle.problem, bundle, limits):
            held |= bundle.lanes
            bundle.error = "waits for another" if bundle.problem is None else _text(bundle.problem)
            bundle.charged = bundle.problem is not None
        else:
            failed = Outcome(failure=OperationFailure.of(bundle.problem))
            bundle.outcomes = [failed if outcome is None else outcome for outcome in bundle.outcomes]
    return readable


_Waiting = Sequence[tuple[Bundle, int]]


def _calls(waiting: _Waiting) -> Iterator[_Waiting]:
    """What may share a call. All pushes; of acks, those that do not speak of the same thing."""
    call: list[tuple[Bundle, int]] = []
    keys: set[Hashable] = set()
    for bundle, ordinal in waiting:
        own = ack_keys(bundle.operations[ordinal].acks)
        if call and not keys.isdisjoint(own):
            yield call
            call, keys = [], set()
        call.append((bundle, ordinal))
        keys |= own
    if call:
        yield call


def ack_keys(acks: Iterable[Ack]) -> set[Hashable]:
    """What acks speak of: two requests that have one of these in common must not share a call, because one would clamp
    the other."""
    keys: set[Hashable] = set()
    for ack in acks:
        if ack.lease_id is not None:
            keys.add(ack.lease_id)
        if ack.partition_id is not None:
            keys.add((ack.partition_id, ack.group))
    return keys


def _one_by_one(call: _Waiting, limits: ApplyLimits, error: LockstepError) -> Applying:
    """Each for itself, after all together have failed."""
    held: set[tuple[str, str]] = set()
    for bundle, ordinal in call:
        operation = bundle.operations[ordinal]
        if not held.isdisjoint(operation.places()):
            bundle.error = bundle.error or _text(error)
            continue
        answer: Answer = error
        if len(call) > 1:
            answer = yield [operation]
        if not isinstance(answer, LockstepError):
            _settle([(bundle, ordinal)], answer)
            continue
        error = answer
        if _may_be_otherwise(answer, bundle, limits):
            held.update(operation.places())
            bundle.error = bundle.error or _text(answer)
            bundle.charged |= not isinstance(answer, LockTimeout)
        else:
            bundle.outcomes[ordinal] = Outcome(failure=OperationFailure.of(answer))


def _may_be_otherwise(error: LockstepError, bundle: Bundle, limits: ApplyLimits) -> bool:
    """Whether it is worth trying again. A partition that somebody holds is free some day, however long that takes."""
    if isinstance(error, LockTimeout):
        return True
    if isinstance(error, Unavailable):
        raise error
    return isinstance(error, _ERRORS) and bundle.retries < limits.retries_max


def _text(error: LockstepError) -> str:
    return f"{error.code}: {error.message}"


def _settle(call: _Waiting, answer: PushResult | list[AckOutcome]) -> None:
    """Give each of the operations of a call its part of the answer."""
    start = 0
    for bundle, ordinal in call:
        operation = bundle.operations[ordinal]
        stop = start + (len(operation.acks) or len(operation.batches))
        if isinstance(answer, PushResult):
            bundle.outcomes[ordinal] = _pushed(operation, answer, start, stop)
        else:
            own = [msgspec.structs.replace(one, index=i) for i, one in enumerate(answer[start:stop])]
            bundle.outcomes[ordinal] = Outcome(acks=own)
        start = stop


def _pushed(operation: NewOperation, result: PushResult, start: int, stop: int) -> Outcome:
    placements = result.placements[start:stop]
    queues = {batch.queue for batch in operation.batches}
    return Outcome(
        placed=[Placed.of(batch, placement) for batch, placement in zip(operation.batches, placements, strict=True)],
        occupancy={queue: (one.depth, one.remaining) for queue, one in result.occupancy.items() if queue in queues},
        order=None if operation.order is None else list(operation.order),
    )


def applied_to(bundles: Sequence[Bundle], steps: Callable[[Attempt], Answer], limits: ApplyLimits) -> Applied:
    """Apply bundles by a function that attempts: what a store does that never waits."""
    before = [list(bundle.outcomes) for bundle in bundles]
    conversation = applying(bundles, limits)
    try:
        attempt = next(conversation)
        while True:
            attempt = conversation.send(steps(attempt))
    except StopIteration:
        pass
    applied = Applied(more=bool(bundles))
    for bundle, outcomes in zip(bundles, before, strict=True):
        applied.add(bundle, outcomes)
    return applied
