"""has_pending: whether a pop now may find something."""

from __future__ import annotations

from lockstep.core.records import PendingRequest
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
