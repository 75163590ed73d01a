"""has_pending and due_in: whether a pop may find something now, and when it may."""

from __future__ import annotations

from lockstep.core.policy import QueueOptions
from lockstep.core.records import Awaited, PendingRequest, Renewal
from lockstep.storage.base import Store
from support.builders import ack, batch, configure, pop, push_n
from support.clock import SetClock


async def pending(store: Store, queue: str, *, partition: str | None = None, group: str = "__QUEUE_MODE__") -> bool:
    [answer] = await store.has_pending([PendingRequest(queue=queue, partition=partition, group=group)])
    return answer


async def test_has_pending_follows_a_partition_through_its_life(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=30, retry_delay_ms=5000)
    await pop(store, "q")
    assert not await pending(store, "q")
    await push_n(store, "q", 2)
    assert await pending(store, "q")
    popped = await pop(store, "q")
    assert not await pending(store, "q")
    await ack(store, lease_id=popped.lease_id)
    assert await pending(store, "q")
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id, status="failed")
    assert not await pending(store, "q")
    clock.advance(5)
    assert await pending(store, "q")
    await pop(store, "q")
    assert not await pending(store, "q")
    clock.advance(30)
    assert await pending(store, "q")
    await pop(store, "q", auto_ack=True)
    assert not await pending(store, "q")


async def test_has_pending_of_one_partition(store: Store) -> None:
    await store.push([batch("q", 1, partition="a"), batch("q", 1, partition="b")])
    await pop(store, "q", partition="a", auto_ack=True)
    assert not await pending(store, "q", partition="a")
    assert await pending(store, "q", partition="b")
    assert not await pending(store, "q", partition="c")


async def test_has_pending_of_new_group_and_unknown_queue(store: Store) -> None:
    assert not await pending(store, "q")
    await configure(store, "q")
    assert await pending(store, "q", group="never-seen")


async def test_has_pending_answers_each_request_in_order(store: Store) -> None:
    await push_n(store, "full")
    await configure(store, "empty")
    await pop(store, "empty")
    names = ["empty", "full", "nowhere", "full"]
    answers = await store.has_pending([PendingRequest(queue=name) for name in names])
    assert answers == [False, True, False, True]


async def due_in(
    store: Store, queue: str, *, partition: str | None = None, group: str = "__QUEUE_MODE__"
) -> float | None:
    [answer] = await store.due_in([Awaited(queue, group, partition)], within=60)
    return answer


async def test_due_in_follows_a_partition_through_its_life(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=30, retry_delay_ms=5000, retry_limit=9)
    await pop(store, "q")
    assert await due_in(store, "q") is None
    await push_n(store, "q", 2)
    assert await due_in(store, "q") == 0
    popped = await pop(store, "q")
    clock.advance(10)
    assert await due_in(store, "q") == 20
    assert popped.lease_id is not None
    await store.renew([Renewal(lease_id=popped.lease_id, seconds=25)])
    assert await due_in(store, "q") == 25
    await ack(store, lease_id=popped.lease_id, status="failed")
    assert await due_in(store, "q") == 5
    clock.advance(6)
    assert await due_in(store, "q") == 0
    await pop(store, "q", auto_ack=True, batch=9)
    assert await due_in(store, "q") is None


async def test_due_in_of_what_is_delayed(store: Store, clock: SetClock) -> None:
    await configure(store, "q", delay_seconds=20)
    await pop(store, "q")
    await push_n(store, "q")
    assert await due_in(store, "q") == 20
    clock.advance(5)
    await store.push([batch("q", 1, partition="a")])
    assert await due_in(store, "q") == 15
    assert await due_in(store, "q", partition="a") == 20


async def test_due_in_knows_nothing_of_what_is_later_than_asked(store: Store) -> None:
    await configure(store, "q", lease_seconds=30)
    await push_n(store, "q")
    await pop(store, "q")
    asked = [Awaited("q", "__QUEUE_MODE__"), Awaited("q", "__QUEUE_MODE__", "Default")]
    assert await store.due_in(asked, within=29) == [None, None]
    assert await store.due_in(asked, within=30) == [30, 30]


async def test_due_in_of_a_shared_group(store: Store, clock: SetClock) -> None:
    await configure(store, "q", group_mode="shared", lease_seconds=30, retry_delay_ms=7000)
    await store.push([batch("q", 2, partition="a"), batch("q", 1, partition="b")])
    first = await pop(store, "q", partition="a", batch=1)
    second = await pop(store, "q", partition="a", batch=1)
    assert await due_in(store, "q") == 0
    assert await due_in(store, "q", partition="a") == 30
    await ack(store, lease_id=second.lease_id, status="failed")
    assert await due_in(store, "q", partition="a") == 7
    clock.advance(10)
    assert await due_in(store, "q", partition="a") == 0
    await ack(store, lease_id=first.lease_id)
    await pop(store, "q", auto_ack=True, batch=9, partitions=9)
    assert await due_in(store, "q") is None


async def test_due_in_of_what_is_stopped_is_never(store: Store) -> None:
    await configure(store, "q", retry_limit=0, on_exhausted="stop")
    await push_n(store, "q")
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id, status="failed")
    assert await due_in(store, "q") is None
    assert await due_in(store, "q", partition="Default") is None


async def test_due_in_of_namespace_and_task_is_that_of_the_earliest_of_their_queues(
    store: Store, clock: SetClock
) -> None:
    names = [("a", "shop", "mail"), ("b", "shop", "print"), ("c", "depot", "mail")]
    for seconds, (queue, namespace, task) in enumerate(names, start=10):
        await store.configure(queue, QueueOptions(lease_seconds=seconds), namespace=namespace, task=task)
        await push_n(store, queue)
    asked = [
        Awaited(None, "g", namespace="depot"),
        Awaited(None, "g", task="mail"),
        Awaited(None, "g", namespace="shop", task="print"),
        Awaited(None, "g", namespace="nowhere"),
        Awaited("b", "g"),
        Awaited(None, "g"),
    ]
    assert await store.due_in(asked, within=60) == [0, 0, 0, None, 0, 0]
    for queue, _, _ in names:
        await pop(store, queue, group="g")
    assert await store.due_in(asked, within=60) == [12, 10, 11, None, 11, 10]
    clock.advance(11)
    assert await store.due_in(asked, within=60) == [1, 0, 0, None, 0, 0]
    assert await store.due_in(asked, within=0.5) == [None, 0, 0, None, 0, 0]
