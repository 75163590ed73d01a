"""Operations that are applied together: what is held, and what that holds up in turn."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.applying import Answer, ApplyLimits, Attempt, Bundle, applied_to
from lockstep.core.messages import Batch, Columns, Placement, PushResult
from lockstep.core.operations import NewOperation
from lockstep.core.records import Ack, AckOutcome
from lockstep.errors import InvalidRequest, LockstepError, LockTimeout, QueueFull
from support.fuzz import examples

LIMITS = ApplyLimits(retries_max=1)
PARTITIONS = "ABC"


def bundle(number: int, operations: Sequence[NewOperation]) -> Bundle:
    lanes = frozenset(PARTITIONS.index(place[1]) for operation in operations for place in operation.places())
    return Bundle(UUID(int=number << 16), list(operations), [None] * len(operations), lanes=lanes)


def push(number: int, partitions: Sequence[str]) -> NewOperation:
    return NewOperation([Batch("q", partition, Columns([b"%d" % number])) for partition in partitions])


def partitions_of(operation: NewOperation) -> set[str]:
    return {batch.partition for batch in operation.batches}


class Log:
    """A store whose partitions may be held, full, or at fault."""

    def __init__(self, **trouble: type[LockstepError]) -> None:
        self.trouble = trouble
        self.pushed: dict[str, list[int]] = {partition: [] for partition in PARTITIONS}

    def attempt(self, attempt: Attempt) -> Answer:
        batches = [batch for operation in attempt for batch in operation.batches]
        for batch in batches:
            if batch.partition in self.trouble:
                return self.trouble[batch.partition](batch.partition)
        for batch in batches:
            self.pushed[batch.partition] += [int(payload) for payload in batch.columns.payloads]
        return PushResult(batches, [Placement(1, 1, UUID(int=0), 0)] * len(batches))


def test_operation_that_waits_holds_up_its_other_partitions() -> None:
    log = Log(A=LockTimeout)
    bundles = [bundle(1, [push(1, "A")]), bundle(2, [push(2, "AB")]), bundle(3, [push(3, "B")])]
    applied = applied_to(bundles, log.attempt, LIMITS)
    assert (applied.operations, applied.postponed) == (0, 3)
    log.trouble.clear()
    applied_to(bundles, log.attempt, LIMITS)
    assert log.pushed == {"A": [1, 2], "B": [2, 3], "C": []}


def test_operations_that_wait_say_what_for() -> None:
    bundles = [bundle(1, [push(1, "A")]), bundle(2, [push(2, "C")]), bundle(3, [push(3, "AB")])]
    applied_to(bundles, Log(A=LockTimeout, C=InvalidRequest).attempt, LIMITS)
    assert [one.error for one in bundles] == ["lock_timeout: A", None, "lock_timeout: A"]


def test_ack_does_not_overtake_an_earlier_ack_of_the_same_lease_that_waits() -> None:
    done: list[str] = []
    held = True

    def attempt(operations: Attempt) -> Answer:
        acks = [ack for operation in operations for ack in operation.acks]
        if held and any(ack.status == "failed" for ack in acks):
            return LockTimeout("held")
        done.extend(ack.status for ack in acks)
        return [AckOutcome(index=index, success=True) for index in range(len(acks))]

    acks = [[Ack(lease_id="one", status="failed")], [Ack(lease_id="one")], [Ack(lease_id="two")]]
    bundles = [bundle(1, [NewOperation(acks=one) for one in acks])]
    applied_to(bundles, attempt, LIMITS)
    assert done == ["completed"], "of the other lease"
    assert [outcome is None for outcome in bundles[0].outcomes] == [True, True, False]
    held = False
    applied_to(bundles, attempt, LIMITS)
    assert done == ["completed", "failed", "completed"]


requests = st.lists(
    st.lists(st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=2, unique=True), min_size=2, max_size=4),
    min_size=1,
    max_size=4,
)
troubles = st.lists(
    st.dictionaries(st.sampled_from(PARTITIONS), st.sampled_from([LockTimeout, QueueFull, InvalidRequest]), max_size=1),
    min_size=1,
    max_size=4,
)


@examples(100, soak=5000)
@given(asked=requests, troubles=troubles)
def test_each_partition_has_its_operations_in_order(
    asked: list[list[list[str]]], troubles: list[dict[str, type[LockstepError]]]
) -> None:
    """Whatever is held, full or at fault while operations are applied, each comes once, and in its order."""
    counted = iter(range(1, 100))
    bundles = [
        bundle(number, [push(next(counted), partitions) for partitions in operations])
        for number, operations in enumerate(asked, 1)
    ]
    log = Log()
    for trouble in [*troubles, {}]:
        log.trouble = trouble
        applied_to([one for one in bundles if one.left], log.attempt, LIMITS)
    assert not any(one.left for one in bundles)
    for partition in PARTITIONS:
        wanted = [
            int(operation.batches[0].columns.payloads[0])
            for one in bundles
            for operation, outcome in zip(one.operations, one.outcomes, strict=True)
            if partition in partitions_of(operation) and outcome is not None and outcome.failure is None
        ]
        assert log.pushed[partition] == wanted
