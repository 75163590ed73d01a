"""Where a group begins on a queue that it sees for the first time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lockstep.core.policy import GroupMode
from lockstep.core.records import Subscription
from lockstep.errors import GroupNotFound, QueueNotFound
from lockstep.storage.base import Store
from support.builders import batch, configure, pop, pop_all, push_n, seqs
from support.clock import START, SetClock

NEW = Subscription("new")


async def pushed_at_0_10_20(store: Store, clock: SetClock) -> None:
    """Two messages each at START, 10 s later and 20 s later; then another 10 s pass."""
    for _ in range(3):
        await push_n(store, "q", 2)
        clock.advance(10)


async def test_all_begins_with_the_first_message(store: Store) -> None:
    await push_n(store, "q", 3)
    assert seqs(await pop(store, "q", group="g", batch=10, subscription=Subscription("all"))) == [1, 2, 3]


async def test_new_begins_with_what_is_pushed_afterwards(store: Store) -> None:
    await push_n(store, "q", 3)
    assert not await pop(store, "q", group="g", batch=10, subscription=NEW)
    await push_n(store, "q", 2)
    assert seqs(await pop(store, "q", group="g", batch=10, subscription=NEW)) == [4, 5]


async def test_new_holds_for_all_partitions_at_once(store: Store) -> None:
    await store.push([batch("q", 2, partition="a"), batch("q", 2, partition="b")])
    assert not await pop(store, "q", group="g", partition="a", subscription=NEW)
    await store.push([batch("q", 1, partition="a"), batch("q", 1, partition="b"), batch("q", 1, partition="c")])
    found = await pop_all(store, "q", group="g")
    assert [(m.partition, m.seq) for m in found] == [("a", 3), ("b", 3), ("c", 1)]


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_new_holds_for_a_partition_that_comes_later(store: Store, mode: GroupMode) -> None:
    await push_n(store, "q", 2, partition="a")
    assert not await pop(store, "q", group="g", partition="b", subscription=NEW, mode=mode)
    await store.push([batch("q", 1, partition="a"), batch("q", 1, partition="b")])
    found = await pop_all(store, "q", group="g")
    assert [(m.partition, m.seq) for m in found] == [("a", 3), ("b", 1)]


async def test_new_in_a_later_pop_changes_nothing(store: Store) -> None:
    await push_n(store, "q", 2)
    await pop(store, "q", group="g", batch=1, auto_ack=True)
    assert seqs(await pop(store, "q", group="g", batch=10, subscription=NEW)) == [2]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-5, [1, 2, 3, 4, 5, 6]),
        (0, [1, 2, 3, 4, 5, 6]),
        (5, [3, 4, 5, 6]),
        (10, [3, 4, 5, 6]),
        (20, [5, 6]),
        (21, []),
    ],
)
async def test_from_begins_with_what_was_created_at_or_after(
    store: Store, clock: SetClock, seconds: int, expected: list[int]
) -> None:
    await pushed_at_0_10_20(store, clock)
    begin = Subscription("from", START + timedelta(seconds=seconds))
    assert seqs(await pop(store, "q", group="g", batch=10, subscription=begin)) == expected


async def test_from_looks_at_each_partition(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 2, partition="old")
    clock.advance(10)
    await store.push([batch("q", 1, partition="old"), batch("q", 1, partition="young")])
    begin = Subscription("from", clock.ago(5))
    popped = await pop(store, "q", group="g", batch=10, partitions=5, subscription=begin)
    assert [(m.partition, m.seq) for m in popped.messages()] == [("old", 3), ("young", 1)]


async def test_queue_mode_always_begins_with_the_first_message(store: Store) -> None:
    await push_n(store, "q", 2)
    assert seqs(await pop(store, "q", batch=10, subscription=NEW)) == [1, 2]


async def test_partition_that_appears_later_is_read_from_its_first_message(store: Store) -> None:
    await push_n(store, "q", 1, partition="a")
    await pop(store, "q", group="g", subscription=NEW)
    await push_n(store, "q", 2, partition="b")
    assert seqs(await pop(store, "q", group="g", batch=10)) == [1, 2]


async def test_namespace_pop_subscribes_on_each_queue(store: Store) -> None:
    await store.push([batch("shop.a", 1), batch("shop.b", 1)])
    assert not await pop(store, namespace="shop", group="g", subscription=NEW)
    await store.push([batch("shop.a", 1), batch("shop.b", 1)])
    popped = await pop(store, namespace="shop", group="g", batch=10, partitions=10)
    assert [(m.queue, m.seq) for m in popped.messages()] == [("shop.a", 2), ("shop.b", 2)]


# --- subscribe


async def test_subscribe_creates_the_group(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 3)
    made = await store.subscribe("q", "g", NEW)
    assert (made.name, made.queue, made.created_at, made.subscription) == ("g", "q", clock.now, NEW)
    assert (made.partitions, made.partitions_with_lag, made.lag, made.leases) == (1, 0, 0, 0)
    await push_n(store, "q", 1)
    assert seqs(await pop(store, "q", group="g", batch=10)) == [4]


async def test_subscribe_leaves_a_group_as_it_is(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 3)
    await pop(store, "q", group="g", batch=1)
    first = (await store.groups(queue="q"))[0]
    clock.advance(1)
    assert await store.subscribe("q", "g", NEW) == first
    assert first.lag == 3


async def test_subscribe_to_unknown_queue(store: Store) -> None:
    with pytest.raises(QueueNotFound):
        await store.subscribe("q", "g", NEW)
    assert await store.queues() == []


async def test_subscribe_prefers_stored_subscription(store: Store) -> None:
    await push_n(store, "q", 2)
    await store.set_subscription("g", NEW, queue="q")
    assert (await store.subscribe("q", "g", Subscription("all"))).lag == 0


# --- stored subscriptions


async def test_stored_subscription_wins_over_the_request(store: Store) -> None:
    await push_n(store, "q", 2)
    assert await store.set_subscription("g", NEW, queue="q") == 1
    assert not await pop(store, "q", group="g", batch=10, subscription=Subscription("all"))
    await push_n(store, "q", 1)
    assert seqs(await pop(store, "q", group="g", batch=10)) == [3]


async def test_stored_time_wins_over_the_request(store: Store, clock: SetClock) -> None:
    await pushed_at_0_10_20(store, clock)
    await store.set_subscription("g", Subscription("from", START + timedelta(seconds=10)), queue="q")
    assert seqs(await pop(store, "q", group="g", batch=10, subscription=NEW)) == [3, 4, 5, 6]


async def test_stored_new_counts_from_when_it_was_stored(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 2)
    clock.advance(1)
    await store.set_subscription("g", NEW, queue="q")
    clock.advance(1)
    await push_n(store, "q", 1)
    clock.advance(1)
    assert seqs(await pop(store, "q", group="g", batch=10)) == [3]


async def test_set_subscription_does_not_move_a_group(store: Store) -> None:
    await push_n(store, "q", 3)
    await pop(store, "q", group="g", batch=1, auto_ack=True)
    await store.set_subscription("g", NEW)
    assert seqs(await pop(store, "q", group="g", batch=10)) == [2, 3]


async def test_set_subscription_rules_the_next_fresh_start(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 3)
    await pop_all(store, "q", group="g")
    clock.advance(1)
    await store.set_subscription("g", NEW, queue="q")
    await store.delete_group("g", queue="q", forget_subscription=False)
    clock.advance(1)
    assert not await pop(store, "q", group="g", batch=10)


async def test_set_subscription_on_all_queues_of_a_group(store: Store) -> None:
    await store.push([batch("a", 1), batch("b", 1), batch("c", 1)])
    await pop(store, "a", group="g")
    await store.set_subscription("g", Subscription("all"), queue="b")
    assert await store.set_subscription("g", NEW) == 2
    assert not await pop(store, "b", group="g")
    assert seqs(await pop(store, "c", group="g")) == [1]


async def test_set_subscription_of_unknown_group_and_queue(store: Store) -> None:
    await configure(store, "q")
    with pytest.raises(GroupNotFound):
        await store.set_subscription("g", NEW)
    with pytest.raises(QueueNotFound):
        await store.set_subscription("g", NEW, queue="nowhere")


async def test_set_subscription_is_shown(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 1)
    await pop(store, "q", group="g")
    begin = Subscription("from", clock.ago(60))
    await store.set_subscription("g", begin, queue="q")
    [group] = await store.groups(queue="q")
    assert group.subscription == begin
