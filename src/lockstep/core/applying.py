"""How operations (operations.py) are applied, for any store.

All requests of a kind are one call, if that works; else each is one for itself, so that one that is at fault fails
alone. A request whose queue is full, or whose partition is held, is tried again later, and so is everything that comes
after it in the same partitions, and after that in turn; when it has been tried often enough it fails, and what it held
up goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec import Struct

from lockstep.core.messages import PushResult
from lockstep.core.operations import NewOperation, OperationFailure, Outcome, Placed
from lockstep.core.records import Ack, AckOutcome
from lockstep.errors import EncryptionUnavailable, LockstepError, LockTimeout, QueueFull, Unavailable

_ERRORS = (QueueFull, LockTimeout, EncryptionUnavailable)
"""What may be otherwise a little later."""


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
    held = _Held()
    for together in _calls(waiting):
        call = [one for one in together if not held.holds(*one)]
        if not call:
            continue
        answer = yield [bundle.operations[ordinal] for bundle, ordinal in call]
        if isinstance(answer, LockstepError):
            yield from _one_by_one(call, limits, answer, held)
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


class _Held:
    """What operations that are tried again later are about, and why they are: whatever is about the same waits, too."""

    def __init__(self) -> None:
        self._why: dict[Hashable, str] = {}

    def hold(self, operation: NewOperation, why: str) -> None:
        self._why |= dict.fromkeys(_subjects(operation), why)

    def holds(self, bundle: Bundle, ordinal: int) -> bool:
        """Whether an operation has to wait for an earlier one. It then holds up all that it is about itself: else what
        comes after it elsewhere would overtake it."""
        operation = bundle.operations[ordinal]
        why = next((self._why[one] for one in _subjects(operation) if one in self._why), None)
        if why is None:
            return False
        self.hold(operation, why)
        bundle.error = bundle.error or why
        return True


def _subjects(operation: NewOperation) -> Iterable[Hashable]:
    """What an operation has an order in: the partitions of a push, the leases and cursors of acks."""
    return ack_keys(operation.acks) if operation.acks else operation.places()


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


def _one_by_one(call: _Waiting, limits: ApplyLimits, error: LockstepError, held: _Held) -> Applying:
    """Each for itself, after all together have failed."""
    for bundle, ordinal in call:
        if held.holds(bundle, ordinal):
            continue
        operation = bundle.operations[ordinal]
        answer: Answer = error
        if len(call) > 1:
            answer = yield [operation]
        if not isinstance(answer, LockstepError):
            _settle([(bundle, ordinal)], answer)
        elif _may_be_otherwise(answer, bundle, limits):
            held.hold(operation, _text(answer))
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
