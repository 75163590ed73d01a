"""A group with the subscription `new` that polls before its queue exists begins with what creates the queue."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.core.policy import GroupMode, QueueOptions
from lockstep.core.records import PopRequest, Subscription
from lockstep.storage.base import Store
from support.builders import configure, pop, push_n, seqs
from support.clock import SetClock

NEW = Subscription("new")
DAY = 86_400


async def polled(store: Store, queue: str = "q", **request: Any) -> list[int]:
    return seqs(await pop(store, queue, group="g", batch=10, subscription=NEW, **request))


async def polled_widely(store: Store, group: str = "g", **labels: str) -> list[str]:
    request = PopRequest(group=group, batch=10, partitions=10, subscription=NEW, auto_ack=True, **labels)
    [popped] = await store.pop([request])
    return sorted([run.queue for run in popped.runs])


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_poll_before_the_queue_exists_is_where_the_group_begins(
    store: Store, clock: SetClock, mode: GroupMode
) -> None:
    assert await polled(store, mode=mode) == []
    clock.advance(1)
    await push_n(store, "q", 2)
    clock.advance(1)
    assert await polled(store, mode=mode) == [1, 2]
    [info] = await store.groups(queue="q", group="g")
    assert info.subscription == NEW


async def test_poll_of_another_group_or_queue_says_nothing(store: Store, clock: SetClock) -> None:
    await polled(store, "other")
    await pop(store, "q", group="h", subscription=NEW)
    clock.advance(1)
    await push_n(store, "q")
    clock.advance(1)
    assert await polled(store) == []


async def test_repeated_polls_begin_with_the_first(store: Store, clock: SetClock) -> None:
    for _ in range(3):
        await polled(store)
        clock.advance(DAY / 2)
    await push_n(store, "q")
    await configure(store, "q", lease_seconds=5)
    clock.advance(DAY / 2 - 1)
    assert await polled(store) == [1]


async def test_poll_is_forgotten_after_a_day(store: Store, clock: SetClock) -> None:
    await polled(store)
    clock.advance(1)
    await push_n(store, "q")
    clock.advance(DAY)
    assert await polled(store) == []


async def test_queue_that_comes_again_is_polled_anew(store: Store, clock: SetClock) -> None:
    await polled(store)
    clock.advance(1)
    await push_n(store, "q")
    clock.advance(1)
    assert await polled(store) == [1]
    await store.delete_queue("q")
    clock.advance(1)
    await push_n(store, "q", 2)
    clock.advance(1)
    assert await polled(store) == [], "what was polled for was the queue before"
    await store.delete_queue("q")
    await polled(store)
    clock.advance(1)
    await push_n(store, "q", 2)
    clock.advance(1)
    assert await polled(store) == [1, 2]


@pytest.mark.parametrize("labels", [{"namespace": "shop"}, {"task": "mail"}, {"namespace": "shop", "task": "mail"}])
async def test_poll_of_a_namespace_or_task_holds_for_queues_to_come(
    store: Store, clock: SetClock, labels: dict[str, str]
) -> None:
    await store.configure("old", QueueOptions(), namespace="shop", task="mail")
    await push_n(store, "old")
    clock.advance(1)
    assert await polled_widely(store, **labels) == []
    for queue, namespace, task in (("a", "shop", "mail"), ("b", "depot", "print")):
        clock.advance(1)
        await store.configure(queue, QueueOptions(), namespace=namespace, task=task)
        await push_n(store, queue)
    await push_n(store, "old")
    clock.advance(1)
    assert await polled_widely(store, **labels) == ["a", "old"]


async def test_group_that_is_deleted_begins_anew(store: Store, clock: SetClock) -> None:
    assert await polled_widely(store, namespace="shop") == []
    clock.advance(1)
    await store.configure("a", QueueOptions(), namespace="shop")
    await push_n(store, "a")
    clock.advance(1)
    assert await polled_widely(store, namespace="shop") == ["a"]
    await store.delete_group("g", queue="a")
    clock.advance(1)
    assert await polled_widely(store, namespace="shop") == []
