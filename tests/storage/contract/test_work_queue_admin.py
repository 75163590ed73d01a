"""Administration: partial updates, the pivot of a listing, statistics of partitions, balance."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from lockstep.core.messages import Batch, NewSchedule
from lockstep.core.policy import GroupMode, queue_options
from lockstep.core.records import PopRequest, Subscription
from lockstep.errors import InvalidOption, QueueNotFound
from lockstep.storage.base import Store
from support.builders import ack, configure, numbers, partitions_of, payloads, pop, push_n
from support.clock import SetClock


async def test_update_changes_what_is_given_and_leaves_the_rest(store: Store) -> None:
    await store.configure("q", (await configure(store, "q", retry_limit=7)).options, namespace="n", task="t")
    updated = await store.update_queue("q", {"lease_seconds": 9}, namespace="m")
    assert (updated.options.lease_seconds, updated.options.retry_limit) == (9, 7)
    assert (updated.namespace, updated.task) == ("m", "t")


async def test_update_of_nothing_and_of_no_queue(store: Store) -> None:
    with pytest.raises(QueueNotFound):
        await store.update_queue("q", {"lease_seconds": 9})
    before = await configure(store, "q")
    assert (await store.update_queue("q", {})).options == before.options


async def test_update_checks_the_options_together(store: Store) -> None:
    await configure(store, "q", lease_seconds=60)
    for changes in ({"expire_seconds": 30}, {"nonsense": 1}, {"partitions": -1}, {"dead_queue": "q"}):
        with pytest.raises(InvalidOption):
            await store.update_queue("q", changes)
    assert (await store.queue("q")).options.expire_seconds == 0


@pytest.mark.parametrize(("old", "new"), [("ordered", "shared"), ("shared", "ordered")])
async def test_group_mode_that_would_do_nothing_for_a_group_is_refused(
    store: Store, old: GroupMode, new: GroupMode
) -> None:
    await configure(store, "q", group_mode=old)
    await store.subscribe("q", "b", Subscription(), mode=new)  # has that mode already
    assert (await store.update_queue("q", {"group_mode": new})).options.group_mode == new
    await configure(store, "other", group_mode=old)
    await store.subscribe("other", "a", Subscription())
    with pytest.raises(InvalidOption, match=f"cannot become {new}: group a of queue other is {old} and stays so"):
        await store.update_queue("other", {"group_mode": new, "priority": 3})
    assert (await store.queue("other")).options == queue_options(group_mode=old)
    await store.update_queue("other", {"group_mode": old})
    await store.delete_group("a")
    assert (await store.update_queue("other", {"group_mode": new})).options.group_mode == new


async def test_configuration_that_asks_for_shared_is_refused_while_a_group_is_ordered(store: Store) -> None:
    await configure(store, "q")
    await store.subscribe("q", "a", Subscription())
    with pytest.raises(InvalidOption, match="cannot become shared"):
        await configure(store, "q", group_mode="shared")
    await store.delete_group("a")
    await configure(store, "q", group_mode="shared")
    await store.subscribe("q", "b", Subscription())
    await configure(store, "q")  # says no mode
    assert (await store.queue("q")).options.group_mode == "ordered"
    assert [group.mode for group in await store.groups(queue="q")] == ["shared"]


async def test_updates_at_the_same_time_are_all_kept(store: Store) -> None:
    await configure(store, "q")
    changes = [{"lease_seconds": 7}, {"retry_limit": 8}, {"priority": 9}, {"delay_seconds": 10}, {"max_size": 11}]
    await asyncio.gather(*(store.update_queue("q", change) for change in changes))
    options = (await store.queue("q")).options
    assert {name: getattr(options, name) for change in changes for name in change} == {
        name: value for change in changes for name, value in change.items()
    }


async def test_update_rules_the_next_pop(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=100)
    await push_n(store, "q")
    await store.update_queue("q", {"lease_seconds": 5})
    popped = await pop(store, "q")
    assert popped.expires_at == clock() + timedelta(seconds=5)


async def test_queues_from_a_name_on(store: Store) -> None:
    for name in ("a", "b", "b.c", "d"):
        await configure(store, name)
    assert [queue.name for queue in await store.queues(from_name="b", limit=2)] == ["b", "b.c"]
    assert [queue.name for queue in await store.queues(from_name="bb")] == ["d"]
    assert [queue.name for queue in await store.queues(from_name="b", after="b")] == ["b.c", "d"]


async def test_stats_of_partitions(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=100)
    await push_n(store, "q", 1, partition="a")
    clock.advance(30)
    created = clock()
    await push_n(store, "q", 3, partition="a", start=2)
    popped = await pop(store, "q", partition="a")
    await ack(store, lease_id=popped.lease_id)
    await pop(store, "q", partition="a", batch=2)
    clock.advance(10)
    await push_n(store, "q", 1, partition="b")
    schedule = NewSchedule(delay_seconds=60.0)
    await store.push([Batch("q", "c", Batch.of("q", payloads(2)).columns, schedule)])
    empty, a, b, c = await store.stats("q")
    assert (empty.partition, empty.total, empty.age_seconds_average, empty.oldest_at) == ("Default", 0, None, None)
    assert (a.total, a.leased, a.oldest_at) == (3, 2, created)
    assert a.age_seconds_average == pytest.approx(10)
    assert a.lease_age_seconds_average == pytest.approx(10)
    assert (b.total, b.leased, b.age_seconds_average) == (1, 0, 0)
    assert (c.partition, c.total, c.scheduled) == ("c", 0, 2)
    assert [one.partition for one in await store.stats("q", after="a", limit=1)] == ["b"]


async def test_stats_weigh_ages_by_messages(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 1)
    clock.advance(40)
    await push_n(store, "q", 3)
    clock.advance(10)
    [stats] = await store.stats("q")
    assert stats.age_seconds_average == pytest.approx((50 + 3 * 10) / 4)


async def test_stats_of_no_queue(store: Store) -> None:
    with pytest.raises(QueueNotFound):
        await store.stats("q")


async def test_clear_of_scheduled_ones_leaves_the_others(store: Store) -> None:
    await push_n(store, "q", 2)
    schedule = NewSchedule(delay_seconds=60.0)
    for partition in ("a", "b"):
        await store.push([Batch("q", partition, Batch.of("q", payloads(2)).columns, schedule)])
    assert await store.clear("q", partition="a", scope="scheduled") == 2
    assert await store.clear("q", scope="scheduled") == 2
    assert numbers(await pop(store, "q", batch=10)) == [1, 2]


# --- Balanced queues ----------------------------------------------------------------------------------------


async def test_balanced_queue_has_its_partitions_from_the_start(store: Store) -> None:
    await configure(store, "q", partitions=12)
    names = [partition.name for partition in await store.partitions("q")]
    assert names == sorted([*map(str, range(12)), "Default"])
    assert await store.balance("q") == [0] * 12


async def test_balance_tells_what_is_pending(store: Store) -> None:
    await configure(store, "q", partitions=3)
    await push_n(store, "q", 4, partition="1")
    await push_n(store, "q", 2, partition="2")
    assert await store.balance("q") == [0, 4, 2]
    popped = await pop(store, "q", partition="1", batch=3)
    await ack(store, lease_id=popped.lease_id)
    assert await store.balance("q") == [0, 1, 2]


async def test_balance_of_other_queues_is_empty(store: Store) -> None:
    assert await store.balance("q") == []
    await configure(store, "q")
    assert await store.balance("q") == []
    await store.update_queue("q", {"partitions": 2})
    assert await store.balance("q") == [0, 0]


async def test_pop_of_a_balanced_queue_prefers_the_fullest(store: Store) -> None:
    await configure(store, "q", partitions=3)
    await push_n(store, "q", 1, partition="0")
    await push_n(store, "q", 3, partition="1")
    await push_n(store, "q", 2, partition="2")
    assert partitions_of(await pop(store, "q", batch=10, partitions=2)) == ["1", "2"]
    assert partitions_of(await pop(store, "q", batch=10, partitions=2)) == ["0"]


async def test_joined_pops_of_a_balanced_queue_each_get_some(store: Store) -> None:
    await configure(store, "q", partitions=3)
    for partition, count in (("0", 10), ("1", 8), ("2", 5)):
        await push_n(store, "q", count, partition=partition)
    popped = await store.pop([PopRequest(queue="q", batch=batch) for batch in (20, 6, 1)])
    assert [len(one) for one in popped] == [10, 6, 1]
