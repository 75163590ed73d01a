"""Partitions that are empty for long go, and nothing else does."""

from __future__ import annotations

import pytest

from lockstep.core.maintenance import Place
from lockstep.core.names import DEFAULT_PARTITION
from lockstep.core.records import PendingRequest
from lockstep.core.streams import NewStreamQuery, StateOp, StreamAck, StreamCycle
from lockstep.errors import PartitionNotFound
from lockstep.storage.base import Store
from support.builders import batch, configure, lag_of, numbers, partitions_of, pop, pop_all, push_n
from support.clock import SetClock

IDLE = 600


async def prune(store: Store, *, idle_seconds: float = IDLE, limit: int = 100) -> int:
    """A walk to its end; returns how many partitions went."""
    removed = 0
    place: Place | None = None
    for _ in range(1000):
        pruned = await store.prune_partitions(idle_seconds, after=place, limit=limit)
        removed, place = removed + pruned.partitions, pruned.next
        if place is None:
            return removed
    raise AssertionError("the walk has no end")


async def names(store: Store, queue: str = "q") -> list[str]:
    return [partition.name for partition in await store.partitions(queue)]


async def emptied(store: Store, *partitions: str) -> None:
    """Partitions that had a message and have none."""
    await store.push([batch("q", 1, partition=partition) for partition in partitions])
    await store.clear("q")


async def test_partition_goes_once_it_was_found_empty_for_long_enough(store: Store, clock: SetClock) -> None:
    await configure(store, "q")
    await emptied(store, "a", "b")
    clock.advance(10 * IDLE)
    assert await prune(store) == 0, "the first look starts the time"
    clock.advance(IDLE - 1)
    assert await prune(store) == 0
    clock.advance(1)
    assert await prune(store) == 2
    assert await names(store) == [DEFAULT_PARTITION]
    with pytest.raises(PartitionNotFound):
        await store.partition("q", "a")


async def test_push_starts_the_time_anew(store: Store, clock: SetClock) -> None:
    await emptied(store, "a")
    assert await prune(store) == 0
    clock.advance(IDLE - 1)
    await emptied(store, "a")
    clock.advance(2)
    assert await prune(store) == 0
    clock.advance(IDLE - 1)
    assert await prune(store) == 0
    clock.advance(1)
    assert await prune(store) == 1


async def test_partition_with_a_message_stays_whoever_has_read_it(store: Store, clock: SetClock) -> None:
    await store.push([batch("q", 1, partition="a"), batch("q", 1, partition="b")])
    await pop(store, "q", partition="b", auto_ack=True)
    await prune(store)
    clock.advance(2 * IDLE)
    assert await prune(store) == 0
    assert await names(store) == ["a", "b"]


async def test_partition_that_never_had_a_message_stays(store: Store, clock: SetClock) -> None:
    await configure(store, "q")
    await prune(store)
    clock.advance(2 * IDLE)
    assert await prune(store) == 0
    assert await names(store) == [DEFAULT_PARTITION]


async def test_partition_with_some_of_its_messages_removed_stays(store: Store, clock: SetClock) -> None:
    await configure(store, "q", retention_enabled=True, retention_seconds=100)
    await push_n(store, "q", partition="a")
    clock.advance(101)
    await push_n(store, "q", partition="a", start=2)
    assert (await store.prune("retention", limit=10)).messages == 1
    await prune(store)
    clock.advance(2 * IDLE)
    assert await prune(store) == 0
    assert numbers(await pop_all(store, "q")) == [2]


async def test_live_lease_keeps_its_partition(store: Store, clock: SetClock) -> None:
    """A lease outlives the messages that a stream has acknowledged under it."""
    await configure(store, "q", lease_seconds=10 * IDLE, retention_enabled=True, completed_retention_seconds=1)
    await push_n(store, "q", partition="a")
    query = await store.register_stream_query(NewStreamQuery(name="s", source_queue="q", config_hash="h"))
    popped = await pop(store, "q", group="g")
    [message] = popped.messages()
    done = StreamAck(transaction_id=message.transaction_id, lease_id=popped.lease_id)
    place = {"query_id": query.id, "partition_id": message.partition_id, "group": "g"}
    await store.stream_cycle(StreamCycle(ack=done, release_lease=False, **place), [])
    clock.advance(2)
    assert (await store.prune("completed_retention", limit=10)).messages == 1
    await prune(store)
    clock.advance(2 * IDLE)
    assert await prune(store) == 0
    clock.advance(10 * IDLE)
    assert await prune(store) == 1


async def test_state_of_a_stream_query_keeps_its_partition(store: Store, clock: SetClock) -> None:
    await emptied(store, "a", "b")
    partition_id = (await store.partition("q", "a")).id
    query = await store.register_stream_query(NewStreamQuery(name="s", source_queue="q", config_hash="h"))
    kept = StateOp(type="upsert", key="k", value=b'{"n":1}')
    await store.stream_cycle(StreamCycle(query_id=query.id, partition_id=partition_id, state_ops=(kept,)), [])
    await prune(store)
    clock.advance(2 * IDLE)
    assert await prune(store) == 1
    assert await names(store) == ["a"]


async def test_next_push_makes_the_partition_anew_for_every_group(store: Store, clock: SetClock) -> None:
    await store.push([batch("q", 3, partition="a")])
    await pop_all(store, "q", group="g")
    await store.clear("q")
    before = (await store.partition("q", "a")).id
    await prune(store)
    clock.advance(IDLE)
    assert await prune(store) == 1
    assert await store.lag("q") == []
    assert not await pop(store, "q", group="g", partition="a")
    assert await store.has_pending([PendingRequest(queue="q", group="g", partition="a")]) == [False]
    [receipt] = await push_n(store, "q", partition="a", start=4)
    assert (receipt.seq, receipt.partition_id > before) == (1, True)
    assert await store.has_pending([PendingRequest(queue="q", group="g", partition="a")]) == [True]
    assert (await lag_of(store, "q", group="g", partition="a")).lag == 1
    popped = await pop(store, "q", group="g", partition="a")
    assert (numbers(popped), partitions_of(popped)) == ([4], ["a"])


@pytest.mark.parametrize("limit", [1, 2, 7])
async def test_batches_go_through_all_queues(store: Store, clock: SetClock, limit: int) -> None:
    for queue in ("r", "q", "s"):
        await store.push([batch(queue, 1, partition=f"p{number}") for number in range(4)])
        await store.clear(queue)
    await push_n(store, "q", partition="p1", start=2)
    assert await prune(store, limit=limit) == 0
    clock.advance(IDLE)
    assert await prune(store, limit=limit) == 11
    assert [await names(store, queue) for queue in ("q", "r", "s")] == [["p1"], [], []]


async def test_max_size_and_history_of_a_queue_whose_partitions_went(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_size=3)
    await emptied(store, "a", "b")
    await prune(store)
    clock.advance(IDLE)
    minute = clock.now
    assert await prune(store) == 2
    [removal] = await store.removals()
    assert (removal.at, removal.queue, removal.kind, removal.messages, removal.partitions) == (
        minute,
        "q",
        "idle_partition",
        0,
        2,
    )
    receipts = await push_n(store, "q", 3, partition="a")
    assert receipts[0].depth == 3
