"""Lag and depth: exact, in every state of a cursor."""

from __future__ import annotations

import pytest

from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import Depth, PartitionLag
from lockstep.errors import GroupNotFound, PartitionNotFound, QueueNotFound, SparkStreamNotFound
from lockstep.storage.base import Store
from support.builders import ack, batch, configure, lag_of, pop, pop_all, push_n
from support.clock import START, SetClock


async def test_lag_through_the_life_of_a_partition(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=30)
    await pop(store, "q")
    [receipt, *_] = await push_n(store, "q", 5)
    fresh = PartitionLag(
        queue="q",
        partition="Default",
        partition_id=receipt.partition_id,
        group=QUEUE_MODE,
        acked=0,
        last_seq=5,
        lag=5,
        oldest_at=START,
        due_at=START,
        stopped=False,
        attempts=0,
        leased=False,
        consumed_at=None,
        in_flight=0,
        unread=5,
    )
    assert await store.lag("q") == [fresh]

    clock.advance(1)
    popped = await pop(store, "q", batch=3)
    leased = await lag_of(store, "q")
    assert (leased.acked, leased.lag, leased.leased, leased.due_at) == (0, 5, True, clock.ahead(30))
    assert (leased.in_flight, leased.unread) == (3, 2)

    clock.advance(1)
    await ack(store, lease_id=popped.lease_id, seq=2)
    partial = await lag_of(store, "q")
    assert (partial.acked, partial.lag, partial.leased, partial.consumed_at) == (2, 3, True, clock.now)

    clock.advance(1)
    await ack(store, lease_id=popped.lease_id)
    released = await lag_of(store, "q")
    assert (released.acked, released.lag, released.leased) == (3, 2, False)
    assert (released.due_at, released.consumed_at) == (clock.now, clock.now)

    await pop(store, "q", batch=5, auto_ack=True)
    drained = await lag_of(store, "q")
    assert (drained.acked, drained.last_seq, drained.lag) == (5, 5, 0)
    assert (drained.oldest_at, drained.due_at) == (None, None)


async def test_expired_lease_is_not_leased_any_more(store: Store, clock: SetClock) -> None:
    await push_n(store, "q")
    await pop(store, "q", lease_seconds=10)
    clock.advance(10)
    lag = await lag_of(store, "q")
    assert (lag.leased, lag.due_at) == (False, clock.now)
    assert (await store.depth("q", QUEUE_MODE)).leased == 0


async def test_oldest_is_the_first_message_not_done(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 2)
    second = clock.advance(10)
    await push_n(store, "q", 2)
    clock.advance(10)
    await pop(store, "q", batch=2, auto_ack=True)
    assert (await lag_of(store, "q")).oldest_at == second


async def test_lag_comes_by_partition_id_then_group(store: Store) -> None:
    await push_n(store, "q", partition="z")
    await push_n(store, "q", partition="a")
    for group in ("h", "G"):
        await pop(store, "q", group=group)
    assert [(lag.partition, lag.group) for lag in await store.lag("q")] == [
        ("z", "G"),
        ("z", "h"),
        ("a", "G"),
        ("a", "h"),
    ]


async def test_lag_of_one_group_or_partition(store: Store) -> None:
    await store.push([batch("q", 1, partition="a"), batch("q", 2, partition="b")])
    for group in ("g", "h"):
        await pop(store, "q", group=group)
    assert [(lag.partition, lag.lag) for lag in await store.lag("q", group="g")] == [("a", 1), ("b", 2)]
    assert [(lag.group, lag.lag) for lag in await store.lag("q", partition="b")] == [("g", 2), ("h", 2)]
    assert [lag.lag for lag in await store.lag("q", group="h", partition="b")] == [2]


async def test_lag_is_paged_by_partition_id(store: Store) -> None:
    await store.push([batch("q", 1, partition=f"p{number}") for number in range(5)])
    await pop(store, "q")
    everything = await store.lag("q")
    found: list[PartitionLag] = []
    while page := await store.lag("q", after_partition_id=found[-1].partition_id if found else 0, limit=2):
        assert len(page) <= 2
        found += page
    assert found == everything
    assert len(found) == 5


async def test_lag_covers_partitions_that_appear_later(store: Store) -> None:
    await push_n(store, "q", 1, partition="a")
    await pop_all(store, "q", group="g")
    await push_n(store, "q", 3, partition="b")
    assert [(lag.partition, lag.lag) for lag in await store.lag("q", group="g")] == [("a", 0), ("b", 3)]


async def test_lag_without_any_group_is_empty(store: Store) -> None:
    await push_n(store, "q", 3)
    assert await store.lag("q") == []


async def test_lag_of_what_is_not_there(store: Store) -> None:
    with pytest.raises(QueueNotFound, match="there is no queue 'q'") as no_queue:
        await store.lag("q")
    assert no_queue.value.details == {"queue": "q"}
    await push_n(store, "q", partition="a")
    with pytest.raises(PartitionNotFound, match="queue 'q' has no partition 'b'") as no_partition:
        await store.lag("q", partition="b")
    assert no_partition.value.details == {"queue": "q", "partition": "b"}
    with pytest.raises(GroupNotFound, match="queue 'q' has no group 'g'") as no_group:
        await store.lag("q", group="g")
    assert no_group.value.details == {"queue": "q", "group": "g"}


# --- depth


async def test_depth_sums_over_partitions(store: Store) -> None:
    await store.push([batch("q", 3, partition="a"), batch("q", 2, partition="b"), batch("q", 1, partition="c")])
    await pop(store, "q", partition="c", auto_ack=True)
    popped = await pop(store, "q", partition="a", batch=3)
    await ack(store, lease_id=popped.lease_id, seq=1)
    assert await store.depth("q", QUEUE_MODE) == Depth(
        queue="q", group=QUEUE_MODE, pending=4, partitions_pending=2, leased=2, unread=2, oldest_at=START
    )


async def test_depth_of_queue_mode_that_was_never_popped(store: Store) -> None:
    await store.push([batch("q", 3, partition="a"), batch("q", 2, partition="b")])
    await configure(store, "q")
    assert await store.depth("q", QUEUE_MODE) == Depth(
        queue="q", group=QUEUE_MODE, pending=5, partitions_pending=2, leased=0, unread=5, oldest_at=START
    )


async def test_depth_of_what_is_not_there(store: Store) -> None:
    with pytest.raises(QueueNotFound):
        await store.depth("q", QUEUE_MODE)
    await push_n(store, "q")
    with pytest.raises(GroupNotFound):
        await store.depth("q", "g")


async def test_depth_counts_each_group_for_itself(store: Store) -> None:
    await push_n(store, "q", 5)
    await pop(store, "q", group="g", batch=2, auto_ack=True)
    await pop(store, "q", group="h", batch=5, auto_ack=True)
    assert (await store.depth("q", "g")).pending == 3
    assert (await store.depth("q", "h")).pending == 0


async def test_duplicates_do_not_count_as_lag(store: Store) -> None:
    await push_n(store, "q", 3, transaction_ids=["a", "b", "a"])
    await push_n(store, "q", 1, transaction_ids=["b"])
    assert (await store.depth("q", QUEUE_MODE)).pending == 2


async def test_without_spark_there_are_no_streams(store: Store) -> None:
    await push_n(store, "q")
    assert await store.spark_streams() == await store.spark_streams(queue="q") == []
    with pytest.raises(QueueNotFound):
        await store.spark_streams(queue="other")
    with pytest.raises(SparkStreamNotFound):
        await store.forget_spark_stream("nobody")
    with pytest.raises(SparkStreamNotFound):
        await store.accept_spark_stream("nobody")
