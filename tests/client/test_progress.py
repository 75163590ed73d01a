"""Which acks say how far a delivery has come."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from lockstep.client._progress import Progress, SharedProgress, refusal
from lockstep.core.messages import Message
from lockstep.core.records import Ack, AckOutcome
from lockstep.errors import Conflict, LeaseLost

LEASE = "lease"


def message(partition_id: int, seq: int) -> Message:
    return Message(
        id="", queue="q", partition="p", partition_id=partition_id, seq=seq, created_at=datetime.now(UTC), payload=b"",
        transaction_id="",
    )  # fmt: skip


def progress() -> Progress:
    """Of partition 1 the messages 5, 6, 8, of partition 2 the messages 1 and 2."""
    return Progress(LEASE, [message(1, 5), message(1, 6), message(1, 8), message(2, 1), message(2, 2)])


def said(acks: Sequence[Ack]) -> list[tuple[int | None, int | None, str]]:
    assert {ack.lease_id for ack in acks} <= {LEASE}
    return [(ack.partition_id, ack.seq, ack.status) for ack in acks]


def apply(made: Progress, acks: Sequence[Ack], *errors: str | None) -> None:
    padded = [*errors, *[None] * (len(acks) - len(errors))]
    made.settle(acks, [AckOutcome(index=i, success=e is None, error=e) for i, e in enumerate(padded)])  # type: ignore[arg-type]


def test_untouched_delivery_is_acknowledged_by_its_lease() -> None:
    made = progress()
    acks = made.whole()
    assert said(acks) == [(None, None, "completed")]
    apply(made, acks)
    assert made.over
    assert made.whole() == made.commits() == made.ends("failed") == made.dead(None) == []


def test_commits_tell_what_is_new_once() -> None:
    made = progress()
    assert made.commits() == []
    made.finish(1, 6)
    acks = made.commits()
    assert said(acks) == [(1, 6, "completed")]
    apply(made, acks)
    assert made.commits() == []
    made.finish(1, 5)
    made.finish(2, 2)
    assert said(made.commits()) == [(2, 2, "completed")]


def test_rest_ends_at_the_first_message_that_is_not_done() -> None:
    made = progress()
    made.finish(1, 6)
    assert said(made.ends("retry")) == [(1, 6, "completed"), (1, 8, "retry"), (2, 1, "retry")]
    made.finish(1, 8)
    made.finish(2, 2)
    assert said(made.ends("retry")) == [(None, None, "completed")]


def test_failed_message_ends_its_partition_alone() -> None:
    made = progress()
    made.finish(1, 5)
    acks = made.ends_one(1, 6, "failed", "why")
    assert said(acks) == [(1, 5, "completed"), (1, 6, "failed")]
    assert acks[1].error == "why"
    apply(made, acks)
    assert not made.is_open(1, 8)
    assert made.is_gone(1, 8)
    assert not made.is_gone(1, 5)
    assert made.is_open(2, 1)
    assert said(made.whole()) == [(2, 2, "completed")]


def test_all_that_is_left_dies() -> None:
    made = progress()
    made.finish(1, 6)
    assert said(made.dead("why")) == [(1, 6, "completed"), (1, 8, "dlq"), (2, 1, "dlq"), (2, 2, "dlq")]


def test_refused_acks_change_nothing_unless_the_lease_is_lost() -> None:
    made = progress()
    made.finish(1, 5)
    apply(made, made.commits(), "committed")
    assert said(made.commits()) == [(1, 5, "completed")]
    apply(made, made.commits(), "lease_lost")
    assert made.commits() == []
    assert not made.over


def test_lost_lease_is_the_first_thing_to_say() -> None:
    def outcome(error: str | None) -> AckOutcome:
        return AckOutcome(index=0, success=error is None, error=error)  # type: ignore[arg-type]

    assert refusal([outcome(None)]) is None
    assert isinstance(refusal([outcome("committed"), outcome("lease_lost")]), LeaseLost)
    error = refusal([outcome(None), outcome("unresolvable")])
    assert type(error) is Conflict
    assert error.details["reason"] == "unresolvable"


# --- Shared groups ------------------------------------------------------------------------------------------


def shared(*seqs: int) -> SharedProgress:
    return SharedProgress(LEASE, [message(1, seq) for seq in seqs])


def test_shared_delivery_that_is_all_done_is_one_ack() -> None:
    progress = shared(1, 2, 3)
    for seq in (3, 1, 2):
        progress.finish(1, seq)
    assert progress.commits() == progress.ends("retry") == progress.whole() == [Ack(lease_id=LEASE)]


def test_shared_messages_end_one_by_one() -> None:
    progress = shared(1, 2, 3)
    progress.finish(1, 2)
    assert progress.commits() == [Ack(lease_id=LEASE, partition_id=1, seq=2)]
    progress.settle(progress.commits(), [AckOutcome(index=0, success=True)])
    assert (progress.is_open(1, 2), progress.is_gone(1, 2), progress.over) == (False, False, False)
    ends = progress.ends("failed", "no")
    assert [(ack.seq, ack.status) for ack in ends] == [(1, "failed"), (3, "failed")]
    progress.settle(ends, [AckOutcome(index=0, success=True), AckOutcome(index=1, success=False, error="lease_lost")])
    assert progress.over
    assert progress.is_gone(1, 1)
    assert progress.is_gone(1, 3)


def test_shared_ack_by_the_lease_alone_needs_all_of_it() -> None:
    progress = shared(1, 2)
    one = progress.ends_one(1, 1, "retry")
    progress.settle(one, [AckOutcome(index=0, success=True)])
    assert progress.whole() == [Ack(lease_id=LEASE, partition_id=1, seq=2)]
