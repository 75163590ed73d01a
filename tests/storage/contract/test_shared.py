"""Shared groups: many consumers of one partition, each message leased, completed or retried for itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lockstep.core.messages import Message
from lockstep.core.records import (
    Ack,
    AckStatus,
    DeadLetterFilter,
    PendingRequest,
    Popped,
    PopRequest,
    Renewal,
    Subscription,
)
from lockstep.core.rules import RETRIED_TOO_OFTEN
from lockstep.errors import GroupModeMismatch, QueueFull, TransactionRolledBack
from lockstep.storage.base import Store
from support.builders import (
    ack,
    ack_of,
    attempts_of,
    batch,
    configure,
    lag_of,
    partitions_of,
    pop,
    push_n,
    seqs,
)
from support.clock import SetClock

GROUP = "workers"
NACKS: list[AckStatus] = ["failed", "retry", "released", "dlq"]


async def lease(store: Store, count: int = 1, **request: Any) -> Popped:
    return await pop(store, "q", group=GROUP, mode="shared", batch=count, **request)


def ack_in(popped: Popped, number: int, status: AckStatus = "completed", **fields: Any) -> Ack:
    """The ack of the number-th message of a pop, by its lease."""
    message = list(popped.messages())[number]
    return Ack(lease_id=popped.lease_id, partition_id=message.partition_id, seq=message.seq, status=status, **fields)


def by_message(message: Message, status: AckStatus = "completed", lease_id: str | None = None) -> Ack:
    return ack_of(message, status, lease_id=lease_id, group=GROUP)


async def dead(store: Store) -> list[tuple[int, int, str | None]]:
    page = await store.dead_letters(DeadLetterFilter())
    return sorted((item.message.seq, item.attempts, item.error) for item in page.items)


# --- Pop


async def test_consumers_of_one_partition_get_different_messages(store: Store) -> None:
    await push_n(store, "q", 10)
    assert [seqs(await lease(store, 4)) for _ in range(4)] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10], []]


async def test_pop_takes_what_is_to_be_retried_before_what_is_new(store: Store) -> None:
    await push_n(store, "q", 5)
    first = await lease(store, 2)
    await store.ack([ack_in(first, 1, "retry")])
    popped = await lease(store, 3)
    assert (seqs(popped), attempts_of(popped)) == ([2, 3, 4], [2, 1, 1])


async def test_expired_lease_is_delivered_again_with_an_attempt_charged(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 3)
    await lease(store, 3, lease_seconds=10)
    clock.advance(9.999)
    assert not await lease(store, 3)
    clock.advance(0.001)
    popped = await lease(store, 5)
    assert (seqs(popped), attempts_of(popped)) == ([1, 2, 3], [2, 2, 2])


async def test_pop_splits_a_range_that_does_not_fit(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 5)
    await lease(store, 5, lease_seconds=10)
    clock.advance(10)
    first, second = await lease(store, 2), await lease(store, 9)
    assert (seqs(first), seqs(second)) == ([1, 2], [3, 4, 5])
    assert attempts_of(second) == [2, 2, 2]


async def test_pop_goes_over_as_many_partitions_as_asked(store: Store) -> None:
    await store.push([batch("q", 2, partition=name) for name in ("a", "b", "c")])
    popped = await lease(store, 10, partitions=2)
    assert len(partitions_of(popped)) == 2
    assert len(popped) == 4
    assert len(await lease(store, 10, partitions=2)) == 2


async def test_partitions_of_retries_count_towards_the_limit(store: Store) -> None:
    await store.push([batch("q", 2, partition="a"), batch("q", 2, partition="b")])
    first = await lease(store, 1, partition="a")
    await ack(store, lease_id=first.lease_id, status="retry")
    popped = await lease(store, 10, partitions=1)
    assert (partitions_of(popped), seqs(popped)) == (["a"], [1, 2])


async def test_named_partition_has_its_own_retries_only(store: Store) -> None:
    await store.push([batch("q", 1, partition="a"), batch("q", 1, partition="b")])
    popped = await lease(store, 2, partitions=2)
    await ack(store, lease_id=popped.lease_id, status="retry")
    assert partitions_of(await lease(store, 5, partition="b", partitions=5)) == ["b"]


async def test_partition_that_was_served_goes_to_the_tail(store: Store, clock: SetClock) -> None:
    await store.push([batch("q", 2, partition="a"), batch("q", 2, partition="b")])
    await store.subscribe("q", GROUP, Subscription(), mode="shared")
    served = []
    for _ in range(4):
        clock.advance(1)
        served += partitions_of(await lease(store, 1))
    assert served == ["a", "b", "a", "b"]


async def test_auto_ack_leaves_nothing_in_flight(store: Store) -> None:
    await push_n(store, "q", 4)
    first = await lease(store, 1)
    await ack(store, lease_id=first.lease_id, status="retry")
    popped = await lease(store, 3, auto_ack=True)
    assert (seqs(popped), popped.lease_id) == ([1, 2, 3], None)
    lag = await lag_of(store, "q", group=GROUP)
    assert (lag.acked, lag.lag, lag.in_flight, lag.retrying) == (3, 1, 0, 0)


async def test_delay_holds_for_new_messages(store: Store, clock: SetClock) -> None:
    await configure(store, "q", delay_seconds=10)
    await push_n(store, "q", 2)
    assert not await lease(store, 5)
    clock.advance(10)
    await push_n(store, "q", 1)
    assert seqs(await lease(store, 5)) == [1, 2]


async def test_what_waited_too_long_is_passed_in_flight_too(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_wait_seconds=30)
    await push_n(store, "q", 2)
    popped = await lease(store, 2)
    clock.advance(20)
    await push_n(store, "q", 1)
    await ack(store, lease_id=popped.lease_id, status="retry")
    clock.advance(11)
    assert seqs(await lease(store, 5)) == [3]
    assert (await lag_of(store, "q", group=GROUP)).acked == 2


@pytest.mark.parametrize("status", ["retry", None])
async def test_what_did_not_wait_too_long_is_delivered_again(
    store: Store, clock: SetClock, status: AckStatus | None
) -> None:
    """After a nack, and after a lease that ended."""
    await configure(store, "q", max_wait_seconds=30, lease_seconds=10)
    await push_n(store, "q", 2)
    popped = await lease(store, 2)
    if status is not None:
        await ack(store, lease_id=popped.lease_id, status=status)
    clock.advance(10)
    assert seqs(await lease(store, 5)) == [1, 2]


async def test_expired_messages_are_not_delivered_again(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=30, lease_seconds=10)
    await push_n(store, "q", 2)
    clock.advance(20)
    await push_n(store, "q", 1)
    popped = await lease(store, 3)
    await store.ack([ack_in(popped, number, "retry") for number in range(3)])
    clock.advance(10)
    assert seqs(await lease(store, 5)) == [3]
    assert await dead(store) == [(1, 1, "expired"), (2, 1, "expired")]


@pytest.mark.parametrize("partition", [None, "Default"])
@pytest.mark.parametrize("partitions", [0, 1])
@pytest.mark.parametrize("auto_ack", [False, True])
async def test_pop_goes_on_behind_what_expired(
    store: Store, clock: SetClock, partition: str | None, partitions: int, auto_ack: bool
) -> None:
    await configure(store, "q", partitions=partitions, lease_seconds=10)
    soon = clock.now + timedelta(seconds=5)
    await push_n(store, "q", 5, expires_at=[None, soon, None, soon, None])
    clock.advance(5)
    popped = await lease(store, 5, partition=partition, auto_ack=auto_ack)
    assert seqs(popped) == [1, 3, 5]


async def test_message_is_not_expired_while_it_is_leased(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=30, lease_seconds=10)
    await push_n(store, "q", 1)
    popped = await lease(store, 1, lease_seconds=100)
    clock.advance(50)
    assert not await lease(store, 5)
    assert (await ack(store, lease_id=popped.lease_id)).success
    assert await dead(store) == []


async def test_has_pending_knows_of_retries_and_expired_leases(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 2)
    asked = [
        PendingRequest(queue="q", group=GROUP),
        PendingRequest(queue="q", group=GROUP, partition="Default"),
    ]
    popped = await lease(store, 2, lease_seconds=10)
    assert await store.has_pending(asked) == [False, False]
    await store.ack([ack_in(popped, 0, "retry", retry_at=clock.now + timedelta(seconds=5))])
    clock.advance(5)
    assert await store.has_pending(asked) == [True, True]
    await lease(store, 1, lease_seconds=100)
    assert await store.has_pending(asked) == [False, False]
    clock.advance(5)
    assert await store.has_pending(asked) == [True, True]


# --- Ack


async def test_messages_complete_in_any_order_and_leave_nothing(store: Store) -> None:
    await push_n(store, "q", 3)
    popped = await lease(store, 3)
    for number, low_water in ((1, 0), (0, 2), (2, 3)):
        [outcome] = await store.ack([ack_in(popped, number)])
        assert (outcome.success, outcome.messages, outcome.released) == (True, 1, False)
        assert (await lag_of(store, "q", group=GROUP)).acked == low_water
    assert (await lag_of(store, "q", group=GROUP)).lag == 0
    assert await store.leases() == []


async def test_ack_by_lease_completes_what_it_still_holds(store: Store) -> None:
    await push_n(store, "q", 5)
    popped = await lease(store, 5)
    await store.ack([ack_in(popped, 1), ack_in(popped, 3, "failed")])
    outcome = await ack(store, lease_id=popped.lease_id)
    assert (outcome.success, outcome.messages) == (True, 3)
    assert (await ack(store, lease_id=popped.lease_id)).error == "lease_lost"
    assert (await lag_of(store, "q", group=GROUP)).lag == 1


@pytest.mark.parametrize("status", NACKS)
async def test_nack_by_lease_speaks_for_all_of_it(store: Store, clock: SetClock, status: AckStatus) -> None:
    await push_n(store, "q", 3)
    popped = await lease(store, 3)
    outcome = await ack(store, lease_id=popped.lease_id, status=status, error="no")
    assert (outcome.success, outcome.dead, outcome.released) == (True, status == "dlq", status != "dlq")
    clock.advance(1)
    again = await lease(store, 9)
    assert seqs(again) == ([] if status == "dlq" else [1, 2, 3])
    assert set(attempts_of(again)) == {"failed": {2}, "retry": {2}, "released": {1}, "dlq": set()}[status]
    assert await dead(store) == ([(seq, 1, "no") for seq in (1, 2, 3)] if status == "dlq" else [])


async def test_failure_waits_for_the_retry_delay(store: Store, clock: SetClock) -> None:
    await configure(store, "q", retry_delay_ms=2000, retry_backoff=2)
    await push_n(store, "q", 1)
    for attempt, delay in ((1, 2), (2, 4), (3, 8)):
        popped = await lease(store, 1)
        assert attempts_of(popped) == [attempt]
        await store.ack([ack_in(popped, 0, "failed")])
        clock.advance(delay - 0.001)
        assert not await lease(store, 1)
        clock.advance(0.001)


@pytest.mark.parametrize("status", ["failed", "retry"])
async def test_message_is_retried_at_the_given_time(store: Store, clock: SetClock, status: AckStatus) -> None:
    await push_n(store, "q", 1)
    popped = await lease(store, 1)
    retry_at = clock.now + timedelta(seconds=60)
    await store.ack([ack_in(popped, 0, status, retry_at=retry_at)])
    assert (await lag_of(store, "q", group=GROUP)).due_at == retry_at
    clock.advance(59.999)
    assert not await lease(store, 1)
    clock.advance(0.001)
    assert attempts_of(await lease(store, 1)) == [2]


@pytest.mark.parametrize(("by", "error"), [("failed", "bad"), ("retry", "bad"), ("expiry", "lease expired")])
@pytest.mark.parametrize("policy", ["dead", "drop", "stop"])
async def test_message_is_exhausted_at_the_limit(
    store: Store, clock: SetClock, policy: str, by: AckStatus, error: str
) -> None:
    await configure(store, "q", retry_limit=1, retry_delay_ms=0, on_exhausted=policy, lease_seconds=10)
    await push_n(store, "q", 2)
    for _ in range(2):
        popped = await lease(store, 1)
        assert seqs(popped) == [1]
        if by != "expiry":
            await store.ack([ack_in(popped, 0, by, error="bad")])
        clock.advance(10)
    assert seqs(await lease(store, 5)) == [2]
    assert await dead(store) == ([(1, 2, error)] if policy == "dead" else [])
    lag = await lag_of(store, "q", group=GROUP)
    assert (lag.stopped, lag.lag) == (policy == "stop", 2 if policy == "stop" else 1)


@pytest.mark.parametrize("whole", [False, True])
async def test_retry_without_a_reason_dies_of_it(store: Store, whole: bool) -> None:
    await configure(store, "q", retry_limit=1)
    await push_n(store, "q", 1)
    for attempt in (1, 2):
        popped = await lease(store, 1)
        assert attempts_of(popped) == [attempt]
        asked = Ack(lease_id=popped.lease_id, status="retry") if whole else ack_in(popped, 0, "retry")
        [outcome] = await store.ack([asked])
        assert (outcome.success, outcome.dead, outcome.released) == (True, attempt == 2, attempt == 1)
    assert not await lease(store, 1)
    assert await dead(store) == [(1, 2, RETRIED_TOO_OFTEN)]


@pytest.mark.parametrize("whole", [False, True])
async def test_release_charges_nothing_however_often(store: Store, whole: bool) -> None:
    await configure(store, "q", retry_limit=0)
    await push_n(store, "q", 1)
    for _ in range(5):
        popped = await lease(store, 1)
        assert attempts_of(popped) == [1]
        await store.ack([Ack(lease_id=popped.lease_id, status="released") if whole else ack_in(popped, 0, "released")])


async def test_one_bad_ack_fails_for_itself_only(store: Store) -> None:
    await push_n(store, "q", 3)
    popped = await lease(store, 2)
    messages = list(popped.messages())
    outcomes = await store.ack(
        [
            by_message(messages[0], lease_id=popped.lease_id),
            Ack(partition_id=messages[0].partition_id, transaction_id="nonsense", group=GROUP),
            by_message(messages[1], lease_id="0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"),
            Ack(lease_id=popped.lease_id, partition_id=messages[0].partition_id, seq=3),
        ]
    )
    assert [outcome.error for outcome in outcomes] == [None, "unresolvable", "lease_lost", "lease_lost"]
    lag = await lag_of(store, "q", group=GROUP)
    assert (lag.acked, lag.in_flight) == (1, 1)


async def test_transaction_with_one_bad_ack_changes_nothing(store: Store) -> None:
    await push_n(store, "q", 2)
    popped = await lease(store, 2)
    with pytest.raises(TransactionRolledBack) as caught:
        await store.transaction([ack_in(popped, 0), ack_in(popped, 1, "dlq"), Ack(lease_id="gone")], [])
    assert [outcome.success for outcome in caught.value.details["outcomes"]] == [True, True, False]
    lag = await lag_of(store, "q", group=GROUP)
    assert (lag.acked, lag.in_flight) == (0, 2)
    assert await dead(store) == []


async def test_refused_push_takes_the_acks_back(store: Store) -> None:
    await configure(store, "full", max_size=1)
    await push_n(store, "q", 2)
    popped = await lease(store, 2)
    with pytest.raises(QueueFull):
        await store.transaction([ack_in(popped, 0, "dlq"), Ack(lease_id=popped.lease_id)], [batch("full", 2)])
    assert await dead(store) == []
    assert (await ack(store, lease_id=popped.lease_id)).messages == 2


async def test_stale_lease_changes_nothing(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 2)
    stale = await lease(store, 2, lease_seconds=10)
    clock.advance(10)
    live = await lease(store, 2)
    acks = [
        ack_in(stale, 0),
        ack_in(stale, 1, "dlq"),
        Ack(lease_id=stale.lease_id),
        by_message(next(live.messages()), "dlq", stale.lease_id),
    ]
    for one in acks:
        [outcome] = await store.ack([one])
        assert outcome.error == "lease_lost"
    assert (await ack(store, lease_id=live.lease_id)).messages == 2


async def test_expired_lease_that_nobody_took_is_lost_too(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 1)
    popped = await lease(store, 1, lease_seconds=10)
    clock.advance(10)
    outcomes = await store.ack([Ack(lease_id=popped.lease_id), ack_in(popped, 0)])
    assert [outcome.error for outcome in outcomes] == ["lease_lost", "lease_lost"]


async def test_ack_by_message_needs_no_lease(store: Store) -> None:
    await push_n(store, "q", 3)
    popped = await lease(store, 2)
    messages = list(popped.messages())
    await store.ack([by_message(messages[1])])
    outcomes = await store.ack([by_message(messages[1]), by_message(messages[1], "failed")])
    assert [(outcome.error, outcome.noop) for outcome in outcomes] == [(None, True), ("committed", False)]
    assert (await lag_of(store, "q", group=GROUP)).in_flight == 1


async def test_message_that_was_not_handed_out_cannot_be_completed(store: Store) -> None:
    await push_n(store, "q", 2)
    await lease(store, 1)
    [receipt] = await push_n(store, "q", 1)
    [outcome] = await store.ack(
        [Ack(partition_id=receipt.partition_id, transaction_id=receipt.message_id, group=GROUP)]
    )
    assert outcome.error == "lease_lost"
    assert seqs(await lease(store, 9)) == [2, 3]


async def test_message_ends_once_in_a_call(store: Store) -> None:
    await push_n(store, "q", 2)
    popped = await lease(store, 2)
    outcomes = await store.ack(
        [
            ack_in(popped, 0),
            ack_in(popped, 0),
            ack_in(popped, 0, "failed"),
            ack_in(popped, 1, "retry"),
            ack_in(popped, 1),
        ]
    )
    assert [(outcome.error, outcome.noop) for outcome in outcomes] == [
        (None, False),
        (None, True),
        ("committed", False),
        (None, False),
        ("lease_lost", False),
    ]
    assert seqs(await lease(store, 9)) == [2]


async def test_acks_of_messages_come_before_the_ack_of_their_lease(store: Store) -> None:
    await push_n(store, "q", 3)
    popped = await lease(store, 3)
    outcomes = await store.ack([Ack(lease_id=popped.lease_id), ack_in(popped, 1, "retry")])
    assert [(outcome.success, outcome.messages) for outcome in outcomes] == [(True, 2), (True, 0)]
    assert seqs(await lease(store, 9)) == [2]


async def test_renewed_lease_holds_what_is_left_of_it(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 5)
    popped = await lease(store, 5, lease_seconds=10)
    await store.ack([ack_in(popped, 2)])
    clock.advance(5)
    [renewed] = await store.renew([Renewal(lease_id=popped.lease_id or "", seconds=20)])
    assert (renewed.partitions, renewed.expires_at) == (1, clock.now + timedelta(seconds=20))
    clock.advance(19.999)
    assert not await lease(store, 5)
    clock.advance(0.001)
    assert seqs(await lease(store, 5)) == [1, 2, 4, 5]
    [lost] = await store.renew([Renewal(lease_id=popped.lease_id or "")])
    assert lost.partitions == 0


async def test_lease_over_partitions_is_acknowledged_as_one(store: Store) -> None:
    await store.push([batch("q", 2, partition="a"), batch("q", 3, partition="b")])
    popped = await lease(store, 9, partitions=9)
    outcome = await ack(store, lease_id=popped.lease_id, seq=1)
    assert outcome.error == "unresolvable"
    assert (await ack(store, lease_id=popped.lease_id)).messages == 5


async def test_acks_of_ordered_and_shared_groups_share_a_call(store: Store) -> None:
    await push_n(store, "q", 3)
    ordered, shared = await pop(store, "q", batch=3), await lease(store, 3)
    outcomes = await store.ack([Ack(lease_id=ordered.lease_id), Ack(lease_id=shared.lease_id), Ack(lease_id="gone")])
    assert [(outcome.messages, outcome.error) for outcome in outcomes] == [(3, None), (3, None), (0, "lease_lost")]
    ordered, shared = await pop(store, "q", batch=3), await lease(store, 3)
    assert (len(ordered), len(shared)) == (0, 0)


# --- The mode of a group


async def test_group_keeps_its_mode(store: Store) -> None:
    await push_n(store, "q", 1)
    await lease(store, 1)
    assert (await store.groups(queue="q"))[0].mode == "shared"
    with pytest.raises(GroupModeMismatch):
        await pop(store, "q", group=GROUP, mode="ordered")
    with pytest.raises(GroupModeMismatch):
        await store.subscribe("q", GROUP, Subscription(), mode="ordered")
    assert (await store.subscribe("q", GROUP, Subscription())).mode == "shared"


async def test_group_mode_of_the_queue_is_for_groups_that_do_not_say(store: Store) -> None:
    await configure(store, "q", group_mode="shared")
    await push_n(store, "q", 2)
    assert [seqs(await pop(store, "q")) for _ in range(2)] == [[1], [2]]
    await pop(store, "q", group="other", mode="ordered")
    assert {group.name: group.mode for group in await store.groups(queue="q")} == {
        "__QUEUE_MODE__": "shared",
        "other": "ordered",
    }


async def test_group_that_starts_afresh_may_have_another_mode(store: Store) -> None:
    await push_n(store, "q", 2)
    await lease(store, 1)
    await store.delete_group(GROUP)
    popped = await pop(store, "q", group=GROUP, mode="ordered", batch=5)
    assert seqs(popped) == [1, 2]


async def test_namespace_is_popped_in_one_mode(store: Store) -> None:
    await push_n(store, "shop.a", 1)
    await push_n(store, "shop.b", 1)
    popped = await pop(store, namespace="shop", group=GROUP, mode="shared", batch=5, partitions=5)
    assert len(popped) == 2
    assert (await ack(store, lease_id=popped.lease_id)).messages == 2
    await store.subscribe("shop.a", "mixed", Subscription(), mode="shared")
    with pytest.raises(GroupModeMismatch):
        await pop(store, namespace="shop", group="mixed")
    assert [group.queue for group in await store.groups(group="mixed")] == ["shop.a"]


async def test_refused_mode_serves_no_request_of_the_call(store: Store) -> None:
    await push_n(store, "q", 1)
    await store.subscribe("q", GROUP, Subscription(), mode="shared")
    requests = [PopRequest(queue="q", group="other"), PopRequest(queue="q", group=GROUP, mode="ordered")]
    with pytest.raises(GroupModeMismatch):
        await store.pop(requests)
    assert await store.leases() == []
    assert [group.name for group in await store.groups(queue="q")] == [GROUP]
