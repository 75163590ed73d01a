"""Ack: what commits, what is refused, and who is fenced off."""

from __future__ import annotations

import pytest

from lockstep.core.messages import Message
from lockstep.core.policy import GroupMode
from lockstep.core.records import Ack, AckOutcome, AckStatus, Popped
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
    push_tagged,
    seqs,
)
from support.clock import SetClock

GARBAGE = ["garbage", "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b", "x" * 300, "日本"]
garbage_ids = pytest.mark.parametrize("garbage", GARBAGE, ids=["text", "uuid", "long", "unicode"])
NACKS: list[AckStatus] = ["failed", "retry", "released", "dlq"]


async def popped_of(store: Store, count: int, **request: object) -> tuple[Popped, list[Message]]:
    """Push `count` messages and pop them."""
    await push_n(store, "q", count)
    popped = await pop(store, "q", batch=count, **request)
    return popped, list(popped.messages())


async def assert_lease_still_counts(store: Store, popped: Popped) -> None:
    assert not await pop(store, "q", batch=10, group=popped.group)
    outcome = await ack(store, lease_id=popped.lease_id, group=popped.group)
    assert (outcome.success, outcome.messages) == (True, len(popped))


# --- By message


async def test_completed_ack_commits_everything_up_to_it(store: Store, clock: SetClock) -> None:
    popped, messages = await popped_of(store, 5)
    [outcome] = await store.ack([ack_of(messages[2], lease_id=popped.lease_id)])
    assert outcome == AckOutcome(index=0, success=True, messages=3, queue="q", partition="Default")
    lag = await lag_of(store, "q")
    assert (lag.acked, lag.lag, lag.leased, lag.consumed_at) == (3, 2, True, clock.now)


async def test_partial_ack_keeps_the_lease(store: Store) -> None:
    popped, messages = await popped_of(store, 3)
    await store.ack([ack_of(messages[0], lease_id=popped.lease_id)])
    assert not await pop(store, "q", batch=10)
    [outcome] = await store.ack([ack_of(messages[2], lease_id=popped.lease_id)])
    assert (outcome.success, outcome.released, outcome.messages) == (True, True, 2)


async def test_partial_ack_does_not_move_the_deadline(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=30)
    popped, messages = await popped_of(store, 3)
    clock.advance(20)
    await store.ack([ack_of(messages[0], lease_id=popped.lease_id)])
    clock.advance(10)
    again = await pop(store, "q", batch=10)
    assert seqs(again) == [2, 3]
    assert attempts_of(again) == [2, 2]


async def test_full_ack_releases_and_resets_attempts(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=30)
    await popped_of(store, 2)
    clock.advance(30)
    popped = await pop(store, "q", batch=2)
    await push_n(store, "q", 1)
    outcome = await ack(store, lease_id=popped.lease_id)
    assert (outcome.success, outcome.released) == (True, True)
    lag = await lag_of(store, "q")
    assert (lag.attempts, lag.leased) == (0, False)
    again = await pop(store, "q", batch=10)
    assert (seqs(again), attempts_of(again)) == ([3], [1])


async def test_full_ack_of_last_message_drains(store: Store) -> None:
    popped, _ = await popped_of(store, 2)
    await ack(store, lease_id=popped.lease_id)
    lag = await lag_of(store, "q")
    assert (lag.lag, lag.due_at, lag.leased) == (0, None, False)
    assert not await pop(store, "q")


async def test_acks_of_every_message_in_one_call(store: Store) -> None:
    popped, messages = await popped_of(store, 3)
    outcomes = await store.ack([ack_of(message, lease_id=popped.lease_id) for message in messages])
    assert [(o.index, o.success, o.noop, o.messages) for o in outcomes] == [
        (0, True, False, 1),
        (1, True, False, 1),
        (2, True, False, 1),
    ]
    assert all(outcome.released for outcome in outcomes)


async def test_acks_in_reverse_order_commit_all_the_same(store: Store) -> None:
    popped, messages = await popped_of(store, 3)
    outcomes = await store.ack([ack_of(message, lease_id=popped.lease_id) for message in reversed(messages)])
    assert [(o.index, o.success, o.noop) for o in outcomes] == [(i, True, False) for i in range(3)]
    assert (await lag_of(store, "q")).acked == 3


async def test_same_message_twice_in_one_call_is_a_noop_the_second_time(store: Store) -> None:
    popped, [message, _] = await popped_of(store, 2)
    outcomes = await store.ack([ack_of(message, lease_id=popped.lease_id)] * 2)
    assert [(o.success, o.noop, o.messages) for o in outcomes] == [(True, False, 1), (True, True, 0)]


async def test_completed_ack_below_the_cursor_is_a_noop(store: Store) -> None:
    popped, messages = await popped_of(store, 3)
    await store.ack([ack_of(messages[1], lease_id=popped.lease_id)])
    [outcome] = await store.ack([ack_of(messages[0], lease_id=popped.lease_id)])
    assert (outcome.success, outcome.noop, outcome.error, outcome.messages) == (True, True, None, 0)
    assert (await lag_of(store, "q")).acked == 2


@pytest.mark.parametrize("status", NACKS)
async def test_nack_below_the_cursor_is_refused(store: Store, status: AckStatus) -> None:
    popped, messages = await popped_of(store, 3)
    await store.ack([ack_of(messages[1], lease_id=popped.lease_id)])
    [outcome] = await store.ack([ack_of(messages[0], status, lease_id=popped.lease_id)])
    assert (outcome.success, outcome.error, outcome.released, outcome.dead) == (
        False,
        "committed",
        False,
        False,
    )
    lag = await lag_of(store, "q")
    assert (lag.acked, lag.attempts, lag.leased) == (2, 0, True)


@pytest.mark.parametrize("status", ["completed", *NACKS])
@garbage_ids
async def test_unknown_transaction_id_is_unresolvable(store: Store, status: AckStatus, garbage: str) -> None:
    popped, [message, *_] = await popped_of(store, 2)
    outcome = await ack(
        store,
        partition_id=message.partition_id,
        transaction_id=garbage,
        lease_id=popped.lease_id,
        status=status,
    )
    assert (outcome.success, outcome.error, outcome.released) == (False, "unresolvable", False)
    await assert_lease_still_counts(store, popped)


async def test_unknown_partition_is_unresolvable(store: Store) -> None:
    popped, [message] = await popped_of(store, 1)
    for partition_id in (message.partition_id + 1000, 0, -1):
        outcome = await ack(store, partition_id=partition_id, transaction_id=message.transaction_id)
        assert (outcome.success, outcome.error) == (False, "unresolvable")
    await assert_lease_still_counts(store, popped)


async def test_group_without_cursor_is_unresolvable(store: Store) -> None:
    _, [message] = await popped_of(store, 1)
    [outcome] = await store.ack([ack_of(message, group="never-seen")])
    assert (outcome.success, outcome.error) == (False, "unresolvable")
    assert [group.name for group in await store.groups(queue="q")] == ["__QUEUE_MODE__"]


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_lease_is_lost_to_a_group_without_cursor(store: Store, mode: GroupMode) -> None:
    await push_n(store, "q")
    popped = await pop(store, "q", group="g", mode=mode)
    [message] = popped.messages()
    [outcome] = await store.ack([ack_of(message, group="never-seen", lease_id=popped.lease_id)])
    assert (outcome.success, outcome.error) == (False, "lease_lost")
    [outcome] = await store.ack([ack_of(message, group="g", lease_id=popped.lease_id)])
    assert outcome.success


async def test_message_of_another_partition_is_unresolvable(store: Store) -> None:
    a, b = await store.push([batch("q", 1, partition="a"), batch("q", 1, partition="b")])
    await pop(store, "q", partitions=2, batch=2)
    outcome = await ack(store, partition_id=a.partition_id, transaction_id=b.transaction_id)
    assert (outcome.success, outcome.error) == (False, "unresolvable")


async def test_message_is_found_by_its_id_as_well_as_by_its_transaction_id(store: Store) -> None:
    await push_tagged(store, "q", "order-1", "0190a1b2-c3d4-7e5f-8a6b-000000000001", None)
    popped = await pop(store, "q", batch=3)
    first, second, third = popped.messages()
    for expected, identity in [
        (1, first.transaction_id),
        (0, first.id),
        (1, second.id),
        (0, second.transaction_id),
        (1, third.id),
    ]:
        outcome = await ack(store, partition_id=first.partition_id, transaction_id=identity)
        assert (outcome.success, outcome.messages) == (True, expected)


async def test_ack_answers_with_queue_and_partition(store: Store) -> None:
    await push_n(store, "q", partition="p")
    popped = await pop(store, "q")
    outcome = await ack(store, lease_id=popped.lease_id)
    assert (outcome.queue, outcome.partition) == ("q", "p")


async def test_ack_of_nothing(store: Store) -> None:
    assert await store.ack([]) == []


# --- Clamp


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
@pytest.mark.parametrize("status", ["failed", "retry", "released"])
async def test_nack_clamps_what_follows_it(store: Store, status: AckStatus, order: tuple[int, ...]) -> None:
    await configure(store, "q", retry_delay_ms=0)
    popped, messages = await popped_of(store, 4)
    statuses: list[AckStatus] = ["completed", status, "completed", "completed"]
    acks = [ack_of(m, s, lease_id=popped.lease_id) for m, s in zip(messages, statuses, strict=True)]
    outcomes = await store.ack([acks[position] for position in order])
    by_seq = {position: outcome for position, outcome in zip(order, outcomes, strict=True)}
    assert [by_seq[i].success for i in range(4)] == [True, True, False, False]
    assert [by_seq[i].error for i in range(4)] == [None, None, "clamped", "clamped"]
    assert (await lag_of(store, "q")).acked == 1
    again = await pop(store, "q", batch=10)
    assert seqs(again) == [2, 3, 4]
    assert attempts_of(again) == [2 if status == "failed" else 1] * 3


async def test_nack_behind_a_nack_changes_nothing(store: Store) -> None:
    await configure(store, "q", retry_delay_ms=0)
    popped, messages = await popped_of(store, 3)
    outcomes = await store.ack([ack_of(m, "failed", lease_id=popped.lease_id) for m in messages])
    assert [(o.success, o.error) for o in outcomes] == [(True, None)] * 3
    assert (await lag_of(store, "q")).attempts == 1
    assert seqs(await pop(store, "q", batch=10)) == [1, 2, 3]


async def test_dlq_behind_a_nack_is_clamped(store: Store) -> None:
    await configure(store, "q", retry_delay_ms=0)
    popped, messages = await popped_of(store, 2)
    outcomes = await store.ack(
        [
            ack_of(messages[0], "retry", lease_id=popped.lease_id),
            ack_of(messages[1], "dlq", lease_id=popped.lease_id),
        ]
    )
    assert [(o.success, o.error, o.dead) for o in outcomes] == [
        (True, None, False),
        (False, "clamped", False),
    ]


async def test_clamp_ends_with_its_call(store: Store) -> None:
    await configure(store, "q", retry_delay_ms=0)
    popped, messages = await popped_of(store, 2)
    await store.ack([ack_of(messages[0], "retry", lease_id=popped.lease_id)])
    again = await pop(store, "q", batch=2)
    outcomes = await store.ack([ack_of(m, lease_id=again.lease_id) for m in again.messages()])
    assert all(outcome.success for outcome in outcomes)


async def test_clamp_stays_within_its_partition_and_group(store: Store) -> None:
    await configure(store, "q", retry_delay_ms=0)
    await store.push([batch("q", 2, partition="a"), batch("q", 2, partition="b")])
    mine = await pop(store, "q", batch=4, partitions=2)
    theirs = await pop(store, "q", batch=4, partitions=2, group="g")
    a1, a2, b1, b2 = mine.messages()
    outcomes = await store.ack(
        [
            ack_of(a1, "failed", lease_id=mine.lease_id),
            ack_of(a2, lease_id=mine.lease_id),
            ack_of(b1, lease_id=mine.lease_id),
            ack_of(b2, lease_id=mine.lease_id),
            ack_of(a2, lease_id=theirs.lease_id, group="g"),
        ]
    )
    assert [o.error for o in outcomes] == [None, "clamped", None, None, None]
    assert {(lag.partition, lag.group): lag.acked for lag in await store.lag("q") if lag.last_seq} == {
        ("a", "__QUEUE_MODE__"): 0,
        ("a", "g"): 2,
        ("b", "__QUEUE_MODE__"): 2,
        ("b", "g"): 0,
    }


# --- Fencing


@pytest.mark.parametrize("status", ["completed", *NACKS])
@garbage_ids
async def test_lease_that_never_was_is_lost(store: Store, status: AckStatus, garbage: str) -> None:
    popped, [message, *_] = await popped_of(store, 2)
    outcomes = await store.ack([ack_of(message, status, lease_id=garbage), Ack(lease_id=garbage, status=status)])
    assert [(o.success, o.error) for o in outcomes] == [(False, "lease_lost")] * 2
    await assert_lease_still_counts(store, popped)


@pytest.mark.parametrize("status", ["completed", *NACKS])
async def test_stale_lease_changes_nothing_for_its_successor(store: Store, clock: SetClock, status: AckStatus) -> None:
    await configure(store, "q", lease_seconds=30)
    stale, [message, *_] = await popped_of(store, 2)
    clock.advance(30)
    live = await pop(store, "q", batch=2)
    outcomes = await store.ack(
        [
            ack_of(message, status, lease_id=stale.lease_id),
            Ack(lease_id=stale.lease_id, status=status),
            Ack(lease_id=stale.lease_id, partition_id=message.partition_id, seq=1, status=status),
        ]
    )
    assert [(o.success, o.error) for o in outcomes] == [(False, "lease_lost")] * 3
    await assert_lease_still_counts(store, live)


@pytest.mark.parametrize("form", ["message", "lease", "seq"])
async def test_ack_after_deadline_loses_lease(store: Store, clock: SetClock, form: str) -> None:
    await configure(store, "q", lease_seconds=30)
    popped, [message] = await popped_of(store, 1)
    acks = {
        "message": ack_of(message, lease_id=popped.lease_id),
        "lease": Ack(lease_id=popped.lease_id),
        "seq": Ack(lease_id=popped.lease_id, partition_id=message.partition_id, seq=1),
    }
    clock.advance(30)
    [outcome] = await store.ack([acks[form]])
    assert (outcome.success, outcome.error) == (False, "lease_lost")
    assert (await lag_of(store, "q")).acked == 0


async def test_ack_just_before_deadline_counts(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=30)
    popped, _ = await popped_of(store, 1)
    clock.advance(29.999_999)
    assert (await ack(store, lease_id=popped.lease_id)).success


async def test_lease_of_another_group_is_lost(store: Store) -> None:
    mine, [message] = await popped_of(store, 1)
    theirs = await pop(store, "q", group="g")
    [outcome] = await store.ack([ack_of(message, lease_id=theirs.lease_id)])
    assert (outcome.success, outcome.error) == (False, "lease_lost")
    [outcome] = await store.ack([ack_of(message, lease_id=mine.lease_id, group="g")])
    assert (outcome.success, outcome.error) == (False, "lease_lost")
    assert {lag.acked for lag in await store.lag("q")} == {0}


async def test_lease_of_another_partition_is_lost(store: Store) -> None:
    await store.push([batch("q", 1, partition="a"), batch("q", 1, partition="b")])
    a, b = await pop(store, "q"), await pop(store, "q")
    [message] = b.messages()
    [outcome] = await store.ack([ack_of(message, lease_id=a.lease_id)])
    assert (outcome.success, outcome.error) == (False, "lease_lost")


async def test_message_beyond_the_lease_is_refused(store: Store) -> None:
    receipts = await push_n(store, "q", 3)
    popped = await pop(store, "q", batch=2)
    outcomes = await store.ack(
        [
            Ack(
                lease_id=popped.lease_id,
                partition_id=receipts[2].partition_id,
                transaction_id=receipts[2].transaction_id,
            ),
            Ack(lease_id=popped.lease_id, partition_id=receipts[2].partition_id, seq=3),
        ]
    )
    assert [(o.success, o.error) for o in outcomes] == [(False, "lease_lost")] * 2
    await assert_lease_still_counts_after_refusal(store, popped)


async def assert_lease_still_counts_after_refusal(store: Store, popped: Popped) -> None:
    outcome = await ack(store, lease_id=popped.lease_id)
    assert (outcome.success, outcome.messages) == (True, len(popped))


async def test_wrong_lease_does_not_spoil_the_right_one_in_one_call(store: Store) -> None:
    popped, messages = await popped_of(store, 3)
    outcomes = await store.ack(
        [
            ack_of(messages[0], lease_id=popped.lease_id),
            ack_of(messages[1], "failed", lease_id="garbage"),
            ack_of(messages[2], lease_id=popped.lease_id),
        ]
    )
    assert [(o.success, o.error) for o in outcomes] == [(True, None), (False, "lease_lost"), (True, None)]
    assert (await lag_of(store, "q")).acked == 3


async def test_lease_that_was_released_is_lost(store: Store) -> None:
    popped, [message] = await popped_of(store, 1)
    await ack(store, lease_id=popped.lease_id)
    outcomes = await store.ack([Ack(lease_id=popped.lease_id), ack_of(message, lease_id=popped.lease_id)])
    assert [(o.success, o.error) for o in outcomes] == [(False, "lease_lost")] * 2


# --- Without a lease id


async def test_ack_without_lease_id_is_not_checked(store: Store) -> None:
    _, messages = await popped_of(store, 3)
    [outcome] = await store.ack([ack_of(messages[1])])
    assert (outcome.success, outcome.messages, outcome.released) == (True, 2, False)
    [outcome] = await store.ack([ack_of(messages[2])])
    assert (outcome.success, outcome.messages, outcome.released) == (True, 1, True)


async def test_ack_without_lease_id_counts_after_the_deadline(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=30)
    _, messages = await popped_of(store, 2)
    clock.advance(60)
    [outcome] = await store.ack([ack_of(messages[1])])
    assert (outcome.success, outcome.messages) == (True, 2)
    assert not await pop(store, "q", batch=2)


async def test_ack_without_lease_id_may_pass_the_lease(store: Store) -> None:
    receipts = await push_n(store, "q", 4)
    popped = await pop(store, "q", batch=2)
    outcome = await ack(store, partition_id=receipts[2].partition_id, transaction_id=receipts[2].transaction_id)
    assert (outcome.success, outcome.messages, outcome.released) == (True, 3, True)
    assert (await ack(store, lease_id=popped.lease_id)).error == "lease_lost"
    assert seqs(await pop(store, "q", batch=10)) == [4]


async def test_ack_of_message_that_was_never_popped(store: Store) -> None:
    await configure(store, "q")
    await pop(store, "q")
    receipts = await push_n(store, "q", 3)
    outcome = await ack(store, partition_id=receipts[1].partition_id, transaction_id=receipts[1].transaction_id)
    assert (outcome.success, outcome.messages) == (True, 2)
    assert seqs(await pop(store, "q", batch=10)) == [3]


async def test_failure_without_lease_id_ends_the_delivery(store: Store) -> None:
    await configure(store, "q", retry_delay_ms=0)
    popped, messages = await popped_of(store, 2)
    [outcome] = await store.ack([ack_of(messages[0], "failed")])
    assert (outcome.success, outcome.released) == (True, True)
    again = await pop(store, "q", batch=2)
    assert (seqs(again), attempts_of(again)) == ([1, 2], [2, 2])
    assert (await ack(store, lease_id=popped.lease_id)).error == "lease_lost"


# --- By lease


async def test_ack_by_lease_completes_all_it_holds(store: Store) -> None:
    popped, _ = await popped_of(store, 4)
    outcome = await ack(store, lease_id=popped.lease_id)
    assert outcome == AckOutcome(index=0, success=True, released=True, messages=4, queue="q", partition="Default")


async def test_ack_by_lease_over_several_partitions(store: Store) -> None:
    await store.push([batch("q", 2, partition="a"), batch("q", 3, partition="b"), batch("q", 1, partition="c")])
    popped = await pop(store, "q", batch=10, partitions=3)
    outcome = await ack(store, lease_id=popped.lease_id)
    assert outcome == AckOutcome(index=0, success=True, released=True, messages=6, queue="q", partition="a")
    assert [lag.lag for lag in await store.lag("q")] == [0, 0, 0]
    assert await store.leases() == []


async def test_ack_by_lease_over_several_queues(store: Store) -> None:
    await configure(store, "shop.a", priority=1)
    await store.push([batch("shop.b", 2), batch("shop.a", 1)])
    popped = await pop(store, namespace="shop", batch=10, partitions=5)
    outcome = await ack(store, lease_id=popped.lease_id)
    assert (outcome.success, outcome.messages) == (True, 3)
    assert (await store.depth("shop.a", "__QUEUE_MODE__")).pending == 0
    assert (await store.depth("shop.b", "__QUEUE_MODE__")).pending == 0


async def test_ack_by_lease_leaves_what_came_after_the_pop(store: Store) -> None:
    popped, _ = await popped_of(store, 2)
    await push_n(store, "q", 1)
    assert (await ack(store, lease_id=popped.lease_id)).messages == 2
    assert seqs(await pop(store, "q", batch=10)) == [3]


async def test_ack_by_lease_works_for_any_group(store: Store) -> None:
    popped, _ = await popped_of(store, 2, group="g")
    outcome = await ack(store, lease_id=popped.lease_id)
    assert (outcome.success, outcome.messages) == (True, 2)
    assert (await store.depth("q", "g")).pending == 0


async def test_ack_by_lease_and_seq_commits_up_to_it(store: Store) -> None:
    popped, _ = await popped_of(store, 5)
    outcome = await ack(store, lease_id=popped.lease_id, seq=3)
    assert (outcome.success, outcome.messages, outcome.released) == (True, 3, False)
    assert (await lag_of(store, "q")).acked == 3
    outcome = await ack(store, lease_id=popped.lease_id)
    assert (outcome.success, outcome.messages, outcome.released) == (True, 2, True)


async def test_ack_by_lease_partition_and_seq(store: Store) -> None:
    await store.push([batch("q", 2, partition="a"), batch("q", 2, partition="b")])
    popped = await pop(store, "q", batch=10, partitions=2)
    a, b = popped.partition_ids
    outcome = await ack(store, lease_id=popped.lease_id, partition_id=b, seq=1)
    assert (outcome.success, outcome.messages, outcome.partition) == (True, 1, "b")
    assert [lag.acked for lag in await store.lag("q")] == [0, 1]
    outcome = await ack(store, lease_id=popped.lease_id, partition_id=a, seq=2)
    assert (outcome.success, outcome.messages, outcome.partition, outcome.released) == (True, 2, "a", True)


async def test_ack_by_lease_and_partition_speaks_for_that_partition(store: Store) -> None:
    await store.push([batch("q", 2, partition="a"), batch("q", 2, partition="b")])
    popped = await pop(store, "q", batch=10, partitions=2)
    _, b = popped.partition_ids
    outcome = await ack(store, lease_id=popped.lease_id, partition_id=b)
    assert (outcome.success, outcome.messages, outcome.partition) == (True, 2, "b")
    assert [lag.acked for lag in await store.lag("q")] == [0, 2]


async def test_ack_by_lease_speaks_for_partitions_that_are_left(store: Store) -> None:
    await store.push([batch("q", 2, partition="a"), batch("q", 3, partition="b")])
    popped = await pop(store, "q", batch=10, partitions=2)
    a, _ = popped.partition_ids
    await ack(store, lease_id=popped.lease_id, partition_id=a, seq=2)
    outcome = await ack(store, lease_id=popped.lease_id)
    assert (outcome.success, outcome.messages, outcome.partition) == (True, 3, "b")


async def test_ack_by_lease_of_which_one_partition_has_expired(store: Store, clock: SetClock) -> None:
    await configure(store, "shop.a", lease_seconds=10)
    await configure(store, "shop.b", lease_seconds=20)
    await store.push([batch("shop.a", 1), batch("shop.b", 2)])
    popped = await pop(store, namespace="shop", batch=9, partitions=2)
    clock.advance(10)
    outcome = await ack(store, lease_id=popped.lease_id)
    assert (outcome.success, outcome.error, outcome.messages) == (False, "lease_lost", 2)
    assert (await store.depth("shop.a", "__QUEUE_MODE__")).pending == 1
    assert (await store.depth("shop.b", "__QUEUE_MODE__")).pending == 0


async def test_seq_below_the_cursor_is_a_noop(store: Store) -> None:
    popped, _ = await popped_of(store, 3)
    await ack(store, lease_id=popped.lease_id, seq=2)
    outcome = await ack(store, lease_id=popped.lease_id, seq=1)
    assert (outcome.success, outcome.noop) == (True, True)


@pytest.mark.parametrize(("status", "attempt"), [("failed", 2), ("retry", 1), ("released", 1)])
async def test_nack_by_lease_gives_the_head_of_each_partition_back(
    store: Store, status: AckStatus, attempt: int
) -> None:
    await configure(store, "q", retry_delay_ms=0)
    await store.push([batch("q", 2, partition="a"), batch("q", 2, partition="b")])
    popped = await pop(store, "q", batch=10, partitions=2)
    outcome = await ack(store, lease_id=popped.lease_id, status=status, error="no")
    assert (outcome.success, outcome.released, outcome.messages) == (True, True, 0)
    again = await pop(store, "q", batch=10, partitions=2)
    assert partitions_of(again) == ["a", "b"]
    assert seqs(again) == [1, 2, 1, 2]
    assert set(attempts_of(again)) == {attempt}


async def test_dlq_by_lease_takes_the_head(store: Store) -> None:
    popped, _ = await popped_of(store, 3)
    outcome = await ack(store, lease_id=popped.lease_id, status="dlq", error="no")
    assert (outcome.success, outcome.dead, outcome.released) == (True, True, True)
    assert seqs(await pop(store, "q", batch=10)) == [2, 3]


async def test_nack_by_lease_after_partial_ack_takes_the_new_head(store: Store) -> None:
    popped, _ = await popped_of(store, 3)
    await ack(store, lease_id=popped.lease_id, seq=1)
    await ack(store, lease_id=popped.lease_id, status="dlq")
    assert seqs(await pop(store, "q", batch=10)) == [3]


# --- Many at once


async def test_acks_of_one_call_for_several_queues_and_groups(store: Store) -> None:
    await store.push([batch("q", 2), batch("r", 3)])
    q, r, g = (
        await pop(store, "q", batch=9),
        await pop(store, "r", batch=9),
        await pop(store, "r", batch=9, group="g"),
    )
    outcomes = await store.ack(
        [
            Ack(lease_id=g.lease_id),
            Ack(lease_id="garbage"),
            Ack(lease_id=q.lease_id),
            Ack(lease_id=r.lease_id),
        ]
    )
    assert [(o.index, o.success, o.messages, o.queue) for o in outcomes] == [
        (0, True, 3, "r"),
        (1, False, 0, None),
        (2, True, 2, "q"),
        (3, True, 3, "r"),
    ]
