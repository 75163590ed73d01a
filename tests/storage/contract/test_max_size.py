"""max_size: exactly that many pending messages, and a clear refusal that stores nothing."""

from __future__ import annotations

import pytest

from lockstep.core.records import Position
from lockstep.errors import QueueFull
from lockstep.storage.base import Store
from support.builders import (
    ack,
    batch,
    configure,
    numbers,
    pop,
    pop_all,
    push_n,
    push_tagged,
    tagged,
)


async def refused(store: Store, count: int = 1, queue: str = "q") -> dict[str, object]:
    with pytest.raises(QueueFull) as raised:
        await push_n(store, queue, count)
    return raised.value.details


async def test_push_up_to_max_size_and_no_further(store: Store) -> None:
    await configure(store, "q", max_size=3)
    for depth in (1, 2, 3):
        [receipt] = await push_n(store, "q", start=depth)
        assert (receipt.depth, receipt.remaining) == (depth, 3 - depth)
    assert await refused(store) == {"queue": "q", "depth": 3, "max_size": 3}
    assert numbers(await pop_all(store, "q")) == [1, 2, 3]


async def test_batch_that_does_not_fit_is_refused_whole(store: Store) -> None:
    await configure(store, "q", max_size=3)
    await push_n(store, "q", 1)
    assert await refused(store, 3) == {"queue": "q", "depth": 1, "max_size": 3}
    assert [receipt.seq for receipt in await push_n(store, "q", 2)] == [2, 3]


async def test_receipts_tell_depth_after_the_whole_call(store: Store) -> None:
    await configure(store, "q", max_size=10)
    receipts = await store.push([batch("q", 2, partition="a"), batch("q", 1, partition="b"), batch("r", 1)])
    assert [(r.depth, r.remaining) for r in receipts] == [(3, 7), (3, 7), (3, 7), (None, None)]


async def test_queue_without_limit_tells_no_depth(store: Store) -> None:
    [receipt] = await push_n(store, "q")
    assert (receipt.depth, receipt.remaining) == (None, None)


async def test_limit_is_over_all_partitions(store: Store) -> None:
    await configure(store, "q", max_size=3)
    await push_n(store, "q", 2, partition="a")
    with pytest.raises(QueueFull):
        await store.push([batch("q", 1, partition="b"), batch("q", 1, partition="c")])
    assert [partition.name for partition in await store.partitions("q")] == ["Default", "a"]


async def test_full_queue_refuses_what_the_call_has_for_other_queues(store: Store) -> None:
    await configure(store, "q", max_size=1)
    with pytest.raises(QueueFull):
        await store.push([batch("other", 1), batch("q", 2)])
    assert [queue.name for queue in await store.queues()] == ["q"]
    assert (await store.queue("q")).messages == 0


async def test_refused_push_leaves_no_transaction_id_behind(store: Store) -> None:
    await configure(store, "q", max_size=1)
    with pytest.raises(QueueFull):
        await push_tagged(store, "q", "a", "b")
    [receipt] = await push_tagged(store, "q", "a")
    assert (receipt.status, receipt.seq) == ("queued", 1)


async def test_duplicates_do_not_count(store: Store) -> None:
    await configure(store, "q", max_size=3)
    await push_tagged(store, "q", "a", "b")
    receipts = await push_tagged(store, "q", "a", "c", "b", "c")
    assert [r.status for r in receipts] == ["duplicate", "queued", "duplicate", "duplicate"]
    assert {(r.depth, r.remaining) for r in receipts} == {(3, 0)}
    [receipt] = await push_tagged(store, "q", "a")
    assert (receipt.status, receipt.depth, receipt.remaining) == ("duplicate", 3, 0)


async def test_messages_not_yet_popped_by_anyone_count(store: Store) -> None:
    await push_n(store, "q", 5)
    await configure(store, "q", max_size=5)
    assert (await refused(store))["depth"] == 5


async def test_completed_messages_make_room(store: Store) -> None:
    await configure(store, "q", max_size=2)
    await push_n(store, "q", 2)
    popped = await pop(store, "q", batch=2)
    assert (await refused(store))["depth"] == 2
    await ack(store, lease_id=popped.lease_id, seq=1)
    [receipt] = await push_n(store, "q")
    assert (receipt.seq, receipt.depth, receipt.remaining) == (3, 2, 0)


async def test_furthest_group_decides(store: Store) -> None:
    await configure(store, "q", max_size=3)
    await push_n(store, "q", 3)
    await pop(store, "q", group="fast", batch=3, auto_ack=True)
    await pop(store, "q", group="slow", batch=1, auto_ack=True)
    assert (await refused(store, 2))["depth"] == 2
    [receipt] = await push_n(store, "q")
    assert (receipt.depth, receipt.remaining) == (3, 0)
    await store.delete_group("slow", queue="q")
    [receipt] = await push_n(store, "q")
    assert (receipt.depth, receipt.remaining) == (2, 1)


async def test_furthest_group_is_measured_over_the_whole_queue(store: Store) -> None:
    await configure(store, "q", max_size=5)
    await store.push([batch("q", 2, partition="a"), batch("q", 3, partition="b")])
    await pop(store, "q", group="g", partition="a", batch=2, auto_ack=True)
    await pop(store, "q", group="h", partition="b", batch=3, auto_ack=True)
    # g has 3 before it and h has 2, though each partition has one group that saw nothing of it.
    receipts = await push_n(store, "q", 2, partition="a")
    assert {(r.depth, r.remaining) for r in receipts} == {(5, 0)}
    assert (await refused(store))["depth"] == 5


async def test_new_group_makes_all_stored_messages_pending(store: Store) -> None:
    await configure(store, "q", max_size=3)
    await push_n(store, "q", 3)
    await pop_all(store, "q", group="g")
    await push_n(store, "q", 1)
    await pop(store, "q", group="late", batch=1)
    assert await refused(store) == {"queue": "q", "depth": 4, "max_size": 3}


async def test_seek_back_fills_the_queue_again(store: Store) -> None:
    await configure(store, "q", max_size=3)
    await push_n(store, "q", 3)
    await pop_all(store, "q")
    await store.seek("q", "__QUEUE_MODE__", Position("start"))
    assert (await refused(store))["depth"] == 3
    await store.seek("q", "__QUEUE_MODE__", Position("end"))
    [receipt] = await push_n(store, "q")
    assert (receipt.depth, receipt.remaining) == (1, 2)


async def test_clear_makes_room(store: Store) -> None:
    await configure(store, "q", max_size=2)
    await push_n(store, "q", 2)
    await store.clear("q")
    assert [receipt.depth for receipt in await push_n(store, "q", 2)] == [2, 2]


async def test_limit_below_present_depth_refuses_without_losing(store: Store) -> None:
    await push_tagged(store, "q", "a", "b", "c", "d")
    await configure(store, "q", max_size=2)
    assert await refused(store) == {"queue": "q", "depth": 4, "max_size": 2}
    [duplicate] = await push_tagged(store, "q", "a")
    assert (duplicate.status, duplicate.depth, duplicate.remaining) == ("duplicate", 4, 0)
    assert len(await pop_all(store, "q")) == 4


async def test_two_full_queues_are_independent(store: Store) -> None:
    await configure(store, "a", max_size=1)
    await configure(store, "b", max_size=2)
    receipts = await store.push([tagged("a", ["x"]), tagged("b", ["x", "y"])])
    assert [(r.queue, r.depth, r.remaining) for r in receipts] == [("a", 1, 0), ("b", 2, 0), ("b", 2, 0)]
    await pop_all(store, "b")
    assert (await refused(store, queue="a"))["queue"] == "a"
    assert [receipt.remaining for receipt in await push_n(store, "b", 1)] == [1]
