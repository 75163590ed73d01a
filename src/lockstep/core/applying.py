"""How operations (operations.py) are applied, in any store.

All requests of one kind are tried as one call. If that call fails, each request is tried alone, so that only the
request at fault fails. A request whose queue is full, or whose partition is locked, is retried later, and so are all
later requests for the same partitions, and those that wait for them in turn. After the maximum number of retries the
request fails, and the requests behind it go on.
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
"""Errors that may be gone a little later."""


class ApplyLimits(Struct, frozen=True, kw_only=True):
    """Limits of one call that applies operations."""

    messages_max: int = 10_000
    bytes_max: int = 16 * 1024**2
    retries_max: int = 20
    """Number of retries of a request whose queue is full; then it fails."""
    retry_seconds_min: float = 0.1
    """The wait before the first retry; each further wait doubles."""
    retry_seconds_max: float = 10.0
    lock_seconds: float = 0.25
    """Longest wait for a locked partition."""
    timeout_seconds: float = 30.0
    """A processor that hangs for longer loses the bundles that it has claimed."""

    def wait_seconds(self, retries: int) -> float:
        return min(self.retry_seconds_min * 2.0 ** min(retries, 30), self.retry_seconds_max)


@dataclass(slots=True)
class Bundle:
    """Requests that were queued together, while they are applied."""

    uuid: UUID
    operations: list[NewOperation]
    outcomes: list[Outcome | None]
    retries: int = 0
    lanes: frozenset[int] = frozenset()
    problem: LockstepError | None = None
    """Why the operations cannot be read; `operations` is empty then."""
    error: str | None = None
    """Why part of the bundle is left."""
    charged: bool = False
    """Whether this attempt counts as a retry."""

    @property
    def left(self) -> list[NewOperation]:
        """The ordinals that are still to be applied."""
        return [one for one, outcome in zip(self.operations, self.outcomes, strict=True) if outcome is None]

    @property
    def failed(self) -> int:
        return sum([outcome is not None and outcome.failure is not None for outcome in self.outcomes])


@dataclass(slots=True)
class Applied:
    """What one call has applied."""

    settled: list[tuple[UUID, list[Outcome]]] = field(default_factory=list)
    """Finished bundles, with all their outcomes."""
    operations: int = 0
    messages: int = 0
    failed: int = 0
    postponed: int = 0
    """Operations to retry later."""
    partitions_by_queue: dict[str, set[str]] = field(default_factory=dict)
    """The partitions that received messages, by queue."""
    messages_by_queue: dict[str, int] = field(default_factory=dict)
    """How many messages, per queue."""
    first_due_at: datetime | None = None
    """When the earliest newly scheduled message is due."""
    acks: list[AckOutcome] = field(default_factory=list)
    more: bool = False
    """Whether more can be applied now."""

    def add(self, bundle: Bundle, before: Sequence[Outcome | None]) -> None:
        """Count what is new in a bundle; `before` has its earlier outcomes."""
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
"""Operations to apply as one call. The answer is a PushResult, a list of AckOutcome, or the error."""
Answer = PushResult | list[AckOutcome] | LockstepError
Applying = Generator[Attempt, Answer, None]


def applying(bundles: Sequence[Bundle], limits: ApplyLimits) -> Applying:
    """Apply the bundles in order: yield attempts, receive their answers, and fill in the outcomes.

    An attempt that fails must not have changed anything. Raises Unavailable; then the whole call must be rolled back.
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
    """The bundles that can be applied. A bundle whose key is missing here is left for a server that has the key, along
    with everything behind it in its lanes. Other unreadable bundles fail."""
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
    """The subjects of operations that are retried later, with the reason. Other operations on the same subjects wait,
    too.
    """

    def __init__(self) -> None:
        self._why: dict[Hashable, str] = {}

    def hold(self, operation: NewOperation, why: str) -> None:
        self._why |= dict.fromkeys(_subjects(operation), why)

    def holds(self, bundle: Bundle, ordinal: int) -> bool:
        """Whether an operation has to wait for an earlier one. If so, its other subjects are held as well; otherwise
        later operations on them would overtake it."""
        operation = bundle.operations[ordinal]
        why = next((self._why[one] for one in _subjects(operation) if one in self._why), None)
        if why is None:
            return False
        self.hold(operation, why)
        bundle.error = bundle.error or why
        return True


def _subjects(operation: NewOperation) -> Iterable[Hashable]:
    """The things within which operations keep their order: the partitions of a push, the leases and cursors of acks."""
    return ack_keys(operation.acks) if operation.acks else operation.places()


def _calls(waiting: _Waiting) -> Iterator[_Waiting]:
    """The operations that may share a call: all pushes; acks only if they concern different leases and cursors."""
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
    """The leases and cursors that acks concern. Requests that have a key in common must not share a call, because one
    would clamp the other."""
    keys: set[Hashable] = set()
    for ack in acks:
        if ack.lease_id is not None:
            keys.add(ack.lease_id)
        if ack.partition_id is not None:
            keys.add((ack.partition_id, ack.group))
    return keys


def _one_by_one(call: _Waiting, limits: ApplyLimits, error: LockstepError, held: _Held) -> Applying:
    """Apply each operation alone, after applying them together has failed."""
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
    """Whether a retry may succeed. A locked partition is always retried: it becomes free some day, however long that
    takes.
    """
    if isinstance(error, LockTimeout):
        return True
    if isinstance(error, Unavailable):
        raise error
    return isinstance(error, _ERRORS) and bundle.retries < limits.retries_max


def _text(error: LockstepError) -> str:
    return f"{error.code}: {error.message}"


def _settle(call: _Waiting, answer: PushResult | list[AckOutcome]) -> None:
    """Give each operation of a call its part of the answer."""
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
    """Apply bundles with a function that makes one attempt, for a store that never waits."""
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
