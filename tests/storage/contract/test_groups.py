"""Groups: seek, delete, list."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import Position, Subscription
from lockstep.errors import GroupNotFound, PartitionNotFound, QueueNotFound
from lockstep.storage.base import Store
from support.builders import (
    ack,
    attempts_of,
    batch,
    configure,
    lag_of,
    pop,
    pop_all,
    push_n,
    seqs,
)
from support.clock import START, SetClock


async def pushed_at_0_10_20(store: Store, clock: SetClock, *, partition: str = "Default") -> None:
    """Two messages each at START, 10 s later and 20 s later; then another 10 s pass."""
    for _ in range(3):
        await push_n(store, "q", 2, partition=partition)
        clock.advance(10)


# --- seek


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (Position("start"), [1, 2, 3, 4, 5, 6]),
        (Position("end"), []),
        (Position("current"), [4, 5, 6]),
        (Position("seq", seq=5), [5, 6]),
        (Position("seq", seq=1), [1, 2, 3, 4, 5, 6]),
        (Position("seq", seq=0), [1, 2, 3, 4, 5, 6]),
        (Position("seq", seq=-7), [1, 2, 3, 4, 5, 6]),
        (Position("seq", seq=6), [6]),
        (Position("seq", seq=7), []),
        (Position("seq", seq=1000), []),
        (Position("time", at=START - timedelta(seconds=1)), [1, 2, 3, 4, 5, 6]),
        (Position("time", at=START), [3, 4, 5, 6]),
        (Position("time", at=START + timedelta(seconds=9)), [3, 4, 5, 6]),
        (Position("time", at=START + timedelta(seconds=10)), [5, 6]),
        (Position("time", at=START + timedelta(seconds=20)), []),
        (Position("time", at=START + timedelta(days=9)), []),
    ],
    ids=lambda value: (
        f"{value.kind}-{value.seq if value.seq is not None else value.at}" if isinstance(value, Position) else ""
    ),
)
async def test_seek_moves_the_cursor(store: Store, clock: SetClock, position: Position, expected: list[int]) -> None:
    await pushed_at_0_10_20(store, clock)
    await pop(store, "q", group="g", batch=3, auto_ack=True)
    assert await store.seek("q", "g", position) == 1
    lag = await lag_of(store, "q", group="g")
    assert lag.lag == len(expected)
    assert seqs(await pop(store, "q", group="g", batch=10)) == expected


async def test_seek_past_the_end_goes_on_with_the_next_push(store: Store) -> None:
    await push_n(store, "q", 2)
    await pop(store, "q", batch=1, auto_ack=True)
    await store.seek("q", QUEUE_MODE, Position("seq", seq=50))
    assert (await lag_of(store, "q")).acked == 2
    await push_n(store, "q", 1)
    assert seqs(await pop(store, "q", batch=5)) == [3]


async def test_seek_drops_the_lease(store: Store) -> None:
    await push_n(store, "q", 3)
    popped = await pop(store, "q", batch=3)
    await store.seek("q", QUEUE_MODE, Position("current"))
    assert await store.leases() == []
    assert (await ack(store, lease_id=popped.lease_id)).error == "lease_lost"
    again = await pop(store, "q", batch=3)
    assert (seqs(again), attempts_of(again)) == ([1, 2, 3], [1, 1, 1])


async def test_seek_starts_attempts_again(store: Store, clock: SetClock) -> None:
    await configure(store, "q", retry_delay_ms=60_000)
    await push_n(store, "q")
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id, status="failed")
    await store.seek("q", QUEUE_MODE, Position("current"))
    lag = await lag_of(store, "q")
    assert (lag.attempts, lag.due_at) == (0, clock.now)
    assert attempts_of(await pop(store, "q")) == [1]


async def test_seek_of_one_partition(store: Store) -> None:
    await store.push([batch("q", 2, partition=name) for name in "abc"])
    await pop_all(store, "q")
    assert await store.seek("q", QUEUE_MODE, Position("start"), partition="b") == 1
    assert [(m.partition, m.seq) for m in await pop_all(store, "q")] == [("b", 1), ("b", 2)]


async def test_seek_of_a_queue_moves_every_partition_of_one_group(store: Store) -> None:
    await store.push([batch("q", 2, partition=name) for name in "abc"])
    await pop_all(store, "q", group="g")
    await pop_all(store, "q", group="h")
    assert await store.seek("q", "g", Position("start")) == 3
    assert (await store.depth("q", "g")).pending == 6
    assert (await store.depth("q", "h")).pending == 0


async def test_seek_by_time_looks_at_each_partition(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 2, partition="old")
    clock.advance(10)
    await store.push([batch("q", 1, partition="old"), batch("q", 2, partition="young")])
    await pop_all(store, "q")
    await store.seek("q", QUEUE_MODE, Position("time", at=clock.ago(10)))
    assert [(m.partition, m.seq) for m in await pop_all(store, "q")] == [
        ("old", 3),
        ("young", 1),
        ("young", 2),
    ]


async def test_seek_back_respects_delay(store: Store, clock: SetClock) -> None:
    await configure(store, "q", delay_seconds=10)
    await push_n(store, "q")
    await pop(store, "q")
    await store.seek("q", QUEUE_MODE, Position("start"))
    assert not await pop(store, "q")
    clock.advance(10)
    assert seqs(await pop(store, "q")) == [1]


async def test_seek_of_what_is_not_there(store: Store) -> None:
    with pytest.raises(QueueNotFound):
        await store.seek("q", "g", Position("start"))
    await push_n(store, "q", partition="a")
    with pytest.raises(GroupNotFound):
        await store.seek("q", "g", Position("start"))
    await pop(store, "q", group="g")
    with pytest.raises(PartitionNotFound):
        await store.seek("q", "g", Position("start"), partition="b")


# --- delete_group


async def test_deleted_group_starts_afresh(store: Store) -> None:
    await store.push([batch("q", 2, partition=name) for name in "ab"])
    await pop_all(store, "q", group="g")
    assert await store.delete_group("g", queue="q") == 2
    assert await store.groups(queue="q") == []
    assert len(await pop_all(store, "q", group="g")) == 4


async def test_deleted_group_loses_its_leases(store: Store) -> None:
    await push_n(store, "q", 2)
    popped = await pop(store, "q", group="g", batch=2)
    [message, _] = popped.messages()
    await store.delete_group("g", queue="q")
    assert await store.leases() == []
    assert (await ack(store, lease_id=popped.lease_id)).error == "lease_lost"
    outcome = await ack(store, partition_id=message.partition_id, transaction_id=message.transaction_id, group="g")
    assert outcome.error == "unresolvable"


async def test_deleted_group_remembers_where_it_begins_unless_told_to_forget(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 2)
    clock.advance(1)
    await pop(store, "q", group="g", subscription=Subscription("new"))
    clock.advance(1)
    await push_n(store, "q", 1)
    await pop_all(store, "q", group="g")
    await store.delete_group("g", queue="q", forget_subscription=False)
    assert seqs(await pop(store, "q", group="g", batch=9)) == [3]
    await store.delete_group("g", queue="q", forget_subscription=True)
    assert seqs(await pop(store, "q", group="g", batch=9)) == [1, 2, 3]


async def test_delete_group_on_all_queues(store: Store) -> None:
    await store.push([batch("a", 1), batch("b", 1, partition="x"), batch("b", 1, partition="y")])
    for queue in ("a", "b"):
        await pop_all(store, queue, group="g")
    await pop_all(store, "a", group="h")
    assert await store.delete_group("g") == 3
    assert [(group.queue, group.name) for group in await store.groups()] == [("a", "h")]


async def test_delete_group_on_one_queue_leaves_the_others(store: Store) -> None:
    await store.push([batch("a", 1), batch("b", 1)])
    for queue in ("a", "b"):
        await pop_all(store, queue, group="g")
    assert await store.delete_group("g", queue="a") == 1
    assert [(group.queue, group.name) for group in await store.groups()] == [("b", "g")]
    assert not await pop(store, "b", group="g")


async def test_delete_group_that_is_not_there(store: Store) -> None:
    await configure(store, "q")
    with pytest.raises(GroupNotFound):
        await store.delete_group("g")
    with pytest.raises(GroupNotFound):
        await store.delete_group("g", queue="q")
    with pytest.raises(QueueNotFound):
        await store.delete_group("g", queue="nowhere")


# --- groups


async def test_groups_tell_where_each_group_is(store: Store, clock: SetClock) -> None:
    await store.push([batch("q", 3, partition="a"), batch("q", 2, partition="b")])
    made_at = clock.advance(5)
    await pop(store, "q", group="g", partition="a", batch=3, auto_ack=True)
    await pop(store, "q", group="g", partition="b", batch=1)
    clock.advance(5)
    [group] = await store.groups(queue="q")
    assert (group.name, group.queue, group.created_at) == ("g", "q", made_at)
    assert group.subscription == Subscription("all")
    assert (group.partitions, group.partitions_with_lag, group.lag, group.leases) == (2, 1, 2, 1)
    assert group.oldest_at == START


async def test_group_without_lag_has_no_oldest_message(store: Store) -> None:
    await push_n(store, "q", 2)
    await pop_all(store, "q", group="g")
    [group] = await store.groups(queue="q")
    assert (group.lag, group.oldest_at, group.leases) == (0, None, 0)


async def test_groups_come_by_queue_then_name(store: Store) -> None:
    for queue in ("b", "a"):
        await push_n(store, queue)
        for group in ("z", "Y", "é", "m"):
            await pop(store, queue, group=group)
    names = sorted(["z", "Y", "é", "m"])
    everything = [(group.queue, group.name) for group in await store.groups()]
    assert everything == [(queue, name) for queue in ("a", "b") for name in names]
    assert [(g.queue, g.name) for g in await store.groups(queue="b")] == [("b", name) for name in names]
    assert [(g.queue, g.name) for g in await store.groups(group="m")] == [("a", "m"), ("b", "m")]
    assert [(g.queue, g.name) for g in await store.groups(queue="a", group="z")] == [("a", "z")]


async def test_groups_of_unknown_queue_and_group(store: Store) -> None:
    with pytest.raises(QueueNotFound):
        await store.groups(queue="q")
    assert await store.groups(group="g") == []


async def test_empty_first_pop_creates_the_group(store: Store) -> None:
    await configure(store, "q")
    assert not await pop(store, "q", group="g")
    assert [(group.name, group.partitions) for group in await store.groups(queue="q")] == [("g", 1)]
