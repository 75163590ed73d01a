"""Transactions: acks and pushes, all or nothing."""

from __future__ import annotations

from uuid import uuid4

import pytest

from lockstep.core.policy import GroupMode
from lockstep.core.records import Ack, AckStatus, DeadLetterFilter
from lockstep.errors import QueueFull, TransactionRolledBack
from lockstep.storage.base import Store
from support.builders import (
    ack,
    ack_of,
    batch,
    configure,
    lag_of,
    numbers,
    pop,
    pop_all,
    push_n,
    push_tagged,
    seqs,
    tagged,
)
from support.clock import SetClock


async def test_ack_and_push_together(store: Store) -> None:
    await push_n(store, "in", 2)
    popped = await pop(store, "in", batch=2)
    result = await store.transaction([Ack(lease_id=popped.lease_id)], [batch("out", 2), batch("log", 1)])
    assert [(o.success, o.messages) for o in result.acks] == [(True, 2)]
    assert [(r.index, r.queue, r.seq, r.status) for r in result.pushed] == [
        (0, "out", 1, "queued"),
        (1, "out", 2, "queued"),
        (2, "log", 1, "queued"),
    ]
    assert (await lag_of(store, "in")).lag == 0
    found = await pop_all(store, "out")
    assert [m.id for m in found] == [r.message_id for r in result.pushed][:2]


async def test_transaction_of_pushes_alone(store: Store) -> None:
    result = await store.transaction([], [batch("out", 2)])
    assert result.acks == []
    assert [r.seq for r in result.pushed] == [1, 2]


async def test_transaction_of_acks_alone(store: Store) -> None:
    await push_n(store, "in", 2)
    popped = await pop(store, "in", batch=2)
    result = await store.transaction([Ack(lease_id=popped.lease_id)], [])
    assert result.acks[0].success
    assert len(result.pushed) == 0


@pytest.mark.parametrize("bad", ["garbage-lease", "unknown-message", "clamped", "expired"])
async def test_failing_ack_rolls_everything_back(store: Store, clock: SetClock, bad: str) -> None:
    await configure(store, "in", lease_seconds=10)
    await configure(store, "other", lease_seconds=100)
    await store.push([batch("in", 2), batch("other", 2)])
    good = await pop(store, "other", batch=2)
    popped = await pop(store, "in", batch=2)
    first, second = popped.messages()
    if bad == "expired":
        clock.advance(10)
    acks: dict[str, list[Ack]] = {
        "garbage-lease": [ack_of(first, lease_id="garbage")],
        "unknown-message": [Ack(partition_id=first.partition_id, transaction_id="no such")],
        "clamped": [ack_of(first, "retry"), ack_of(second)],
        "expired": [Ack(lease_id=popped.lease_id)],
    }
    before = await store.lag("in"), await store.lag("other"), await store.leases()
    with pytest.raises(TransactionRolledBack) as raised:
        await store.transaction([Ack(lease_id=good.lease_id), *acks[bad]], [batch("out", 1)])
    outcomes = raised.value.details["outcomes"]
    assert [outcome.index for outcome in outcomes] == list(range(len(acks[bad]) + 1))
    assert outcomes[0].success
    assert not outcomes[-1].success
    assert (
        outcomes[-1].error
        == {
            "garbage-lease": "lease_lost",
            "unknown-message": "unresolvable",
            "clamped": "clamped",
            "expired": "lease_lost",
        }[bad]
    )
    assert (await store.lag("in"), await store.lag("other"), await store.leases()) == before
    assert [queue.name for queue in await store.queues()] == ["in", "other"]
    assert (await ack(store, lease_id=good.lease_id)).messages == 2


async def test_noop_is_no_failure(store: Store) -> None:
    await push_n(store, "in", 2)
    popped = await pop(store, "in", batch=2)
    first, second = popped.messages()
    await store.ack([ack_of(first)])
    result = await store.transaction([ack_of(first), ack_of(second)], [batch("out", 1)])
    assert [(o.success, o.noop) for o in result.acks] == [(True, True), (True, False)]
    assert numbers(await pop_all(store, "out")) == [1]


@pytest.mark.parametrize(("status", "expected"), [("failed", [1, 2]), ("retry", [1, 2]), ("dlq", [2])])
async def test_nack_may_be_part_of_a_transaction(store: Store, status: AckStatus, expected: list[int]) -> None:
    await configure(store, "in", retry_delay_ms=0)
    await push_n(store, "in", 2)
    popped = await pop(store, "in", batch=2)
    await store.transaction([Ack(lease_id=popped.lease_id, status=status)], [batch("errors", 1)])
    assert seqs(await pop(store, "in", batch=5)) == expected
    assert len(await pop_all(store, "errors")) == 1


async def test_rolled_back_dlq_leaves_no_dead_letter(store: Store) -> None:
    await push_n(store, "in", 2)
    popped = await pop(store, "in", batch=2)
    with pytest.raises(TransactionRolledBack):
        await store.transaction([Ack(lease_id=popped.lease_id, status="dlq"), Ack(lease_id="garbage")], [])
    assert (await store.dead_letters(DeadLetterFilter())).total == 0
    assert (await ack(store, lease_id=popped.lease_id)).messages == 2


async def test_full_queue_rolls_acks_back(store: Store) -> None:
    await configure(store, "out", max_size=1)
    await push_n(store, "in", 2)
    popped = await pop(store, "in", batch=2)
    with pytest.raises(QueueFull) as raised:
        await store.transaction([Ack(lease_id=popped.lease_id)], [batch("fresh", 1), batch("out", 2)])
    assert raised.value.details == {"queue": "out", "depth": 0, "max_size": 1}
    assert (await lag_of(store, "in")).acked == 0
    assert [queue.name for queue in await store.queues()] == ["in", "out"]
    assert (await ack(store, lease_id=popped.lease_id)).messages == 2


async def test_acks_come_before_pushes(store: Store) -> None:
    await configure(store, "q", max_size=2)
    await push_n(store, "q", 2)
    popped = await pop(store, "q", batch=2)
    result = await store.transaction([Ack(lease_id=popped.lease_id)], [batch("q", 2)])
    assert [(r.seq, r.depth, r.remaining) for r in result.pushed] == [(3, 2, 0), (4, 2, 0)]


async def test_duplicates_are_no_failure(store: Store) -> None:
    [first] = await push_tagged(store, "out", "a")
    await push_n(store, "in", 1)
    popped = await pop(store, "in")
    result = await store.transaction([Ack(lease_id=popped.lease_id)], [tagged("out", ["a", "b"])])
    assert [r.status for r in result.pushed] == ["duplicate", "queued"]
    assert result.pushed[0].message_id == first.message_id
    assert (await lag_of(store, "in")).lag == 0


async def test_rolled_back_push_leaves_no_transaction_id_behind(store: Store) -> None:
    with pytest.raises(TransactionRolledBack):
        await store.transaction([Ack(lease_id="garbage")], [tagged("out", ["a"])])
    [receipt] = await push_tagged(store, "out", "a")
    assert (receipt.status, receipt.seq) == ("queued", 1)


async def test_push_back_to_the_partition_that_was_acked(store: Store) -> None:
    await push_n(store, "q", 1)
    popped = await pop(store, "q")
    await store.transaction([Ack(lease_id=popped.lease_id)], [batch("q", 1, start=2)])
    assert numbers(await pop(store, "q", batch=5)) == [2]


async def test_empty_transaction(store: Store) -> None:
    result = await store.transaction([], [])
    assert (result.acks, list(result.pushed)) == ([], [])


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_required_lease_that_is_live_lets_a_push_through(store: Store, mode: GroupMode) -> None:
    await push_n(store, "in", 2)
    popped = await pop(store, "in", group="g", mode=mode)
    assert popped.lease_id is not None
    result = await store.transaction([], [batch("out", 1)], required_leases=[popped.lease_id])
    assert [receipt.seq for receipt in result.pushed] == [1]
    assert (await ack(store, lease_id=popped.lease_id)).success, "the lease is as it was"


@pytest.mark.parametrize("mode", ["ordered", "shared"])
@pytest.mark.parametrize("end", ["expired", "acked", "never"])
async def test_required_lease_that_is_lost_stores_nothing(
    store: Store, clock: SetClock, mode: GroupMode, end: str
) -> None:
    await push_n(store, "in", 2)
    lost = (await pop(store, "in", group="g", mode=mode, lease_seconds=5)).lease_id
    await push_n(store, "other")
    live = (await pop(store, "other", lease_seconds=60)).lease_id
    assert lost is not None
    assert live is not None
    if end == "expired":
        clock.advance(6)
    elif end == "acked":
        await ack(store, lease_id=lost)
    else:
        lost = str(uuid4())
    with pytest.raises(TransactionRolledBack, match="lease") as raised:
        await store.transaction([], [batch("out", 1)], required_leases=[live, lost])
    assert lost in raised.value.message
    assert raised.value.details["outcomes"] == []
    assert [queue.name for queue in await store.queues()] == ["in", "other"]
