"""Pruning against those who push, pop, ack and seek at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from lockstep.core.maintenance import Pruned
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import PendingRequest, Position, Subscription
from lockstep.storage.postgres.store import PostgresStore
from support.builders import ack, batch, configure, finish_groups, lag_of, listed, numbers, pop, pop_all, push_n
from support.clock import SetClock
from support.sessions import Actor, Stage

pytestmark = pytest.mark.set_clock

AGE = 100
# So that pruning is always at the heels of the consumers.
AGE_EVERYTHING = "update lockstep.segment set created_at = created_at - interval '1 hour'"


@pytest_asyncio.fixture
async def stores(dsn: str, clock: SetClock) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Two servers: each remembers names on its own."""
    stores = PostgresStore(dsn, clock=clock), PostgresStore(dsn, clock=clock)
    yield stores
    assert await stores[0].verify() == []
    await asyncio.gather(*(store.close() for store in stores))


async def idle(actor: Actor, clock: SetClock, *partitions: str) -> None:
    """Partitions that are known to be empty for a minute."""
    await actor.store.push([batch("q", 1, partition=partition) for partition in partitions])
    await actor.store.clear("q")
    await actor.store.prune_partitions(60, limit=100)
    clock.advance(60)


# --- Idle partitions --------------------------------------------------------------------------------------


async def test_push_that_waits_for_the_removal_makes_the_partition_anew(stage: Stage, clock: SetClock) -> None:
    """A removes the partition and holds on; B, who knows its id, pushes and waits; A commits: nothing is lost."""
    a, b = await stage.actors(2)
    await push_n(b.store, "q", partition="p")
    await b.store.subscribe("q", "g", Subscription())
    await idle(a, clock, "p")
    before = (await b.store.partition("q", "p")).id
    await a.begin()
    assert await a.store.prune_partitions(60, limit=10) == Pruned(partitions=1)
    waiting = await stage.blocked(push_n(b.store, "q", partition="p", start=7), b, by=a)
    await a.commit()
    [receipt] = await waiting
    assert (receipt.seq, receipt.partition_id > before) == (1, True)
    assert numbers(await pop_all(b.store, "q", group="g")) == [7]


async def test_push_that_waits_and_the_removal_is_rolled_back(stage: Stage, clock: SetClock) -> None:
    a, b = await stage.actors(2)
    await push_n(b.store, "q", partition="p")
    await idle(a, clock, "p")
    await a.begin()
    await a.store.prune_partitions(60, limit=10)
    waiting = await stage.blocked(push_n(b.store, "q", partition="p", start=7), b, by=a)
    await a.rollback()
    [receipt] = await waiting
    assert receipt.seq == 3


async def test_partition_that_is_being_pushed_to_stays(stage: Stage, clock: SetClock) -> None:
    """B pushes and holds on; A does not wait for it, takes the other partition and leaves this one."""
    a, b = await stage.actors(2)
    await push_n(b.store, "q", partition="p")
    await idle(a, clock, "p", "other")
    await b.begin()
    await push_n(b.store, "q", partition="p", start=7)
    assert await a.store.prune_partitions(60, limit=10) == Pruned(partitions=1)
    await b.commit()
    assert await a.store.prune_partitions(60, limit=10) == Pruned()
    assert numbers(await pop_all(a.store, "q")) == [7]


async def test_names_that_are_being_resolved_keep_their_partitions(stage: Stage, clock: SetClock) -> None:
    """B makes a new partition, and holds the queue so; A must not take another from under it."""
    a, b = await stage.actors(2)
    await idle(a, clock, "p")
    await b.begin()
    await push_n(b.store, "q", partition="new", start=7)
    assert await a.store.prune_partitions(60, limit=10) == Pruned()
    await push_n(b.store, "q", partition="p", start=8)
    await b.commit()
    assert sorted(numbers(await pop_all(a.store, "q"))) == [7, 8]


async def test_group_does_not_wait_for_the_removal_and_gets_no_cursor_there(stage: Stage, clock: SetClock) -> None:
    a, b = await stage.actors(2)
    await push_n(a.store, "q", partition="stays")
    await idle(a, clock, "p")
    await push_n(a.store, "q", partition="stays")
    await a.begin()
    assert (await a.store.prune_partitions(60, limit=10)).partitions == 1
    await b.store.subscribe("q", "g", Subscription())
    await a.commit()
    assert [lag.partition for lag in await b.store.lag("q", group="g")] == ["stays"]
    await finish_groups(b.store)
    assert await b.sql("select count(*) from lockstep.missing_cursor") == 0


async def test_server_that_remembers_a_removed_partition_finds_the_new_one(
    stores: tuple[PostgresStore, PostgresStore], clock: SetClock
) -> None:
    ours, theirs = stores
    await push_n(ours, "q", partition="p")
    assert numbers(await pop_all(theirs, "q", partition="p")) == [1]
    await ours.clear("q")
    await ours.prune_partitions(60, limit=10)
    clock.advance(60)
    assert (await ours.prune_partitions(60, limit=10)).partitions == 1
    asked = [PendingRequest(queue="q", partition="p")]
    assert await theirs.has_pending(asked) == [True], "the id is gone: only a pop finds out"
    assert not await pop(theirs, "q", partition="p")
    assert await theirs.has_pending(asked) == [False]
    await push_n(ours, "q", partition="p", start=2)
    assert await theirs.has_pending(asked) == [True]
    assert numbers(await pop(theirs, "q", partition="p")) == [2]


async def test_waiting_server_is_told_of_what_came_to_the_new_partition(
    stores: tuple[PostgresStore, PostgresStore], clock: SetClock
) -> None:
    """The new partition is there before the other server has noticed that the old one is gone."""
    ours, theirs = stores
    await push_n(ours, "q", partition="p")
    await pop_all(theirs, "q", partition="p")
    await ours.clear("q")
    await ours.prune_partitions(60, limit=10)
    clock.advance(60)
    await ours.prune_partitions(60, limit=10)
    await push_n(ours, "q", partition="p", start=2)
    assert await theirs.has_pending([PendingRequest(queue="q", partition="p")]) == [True]
    assert numbers(await pop(theirs, "q", partition="p")) == [2]


async def test_producers_lose_nothing_while_partitions_come_and_go(dsn: str) -> None:
    """Producers, a consumer and both removals at full speed, on the real clock."""
    store = PostgresStore(dsn)
    await configure(store, "q", retention_enabled=True, completed_retention_seconds=1)
    await store.subscribe("q", QUEUE_MODE, Subscription())
    lanes, pushed, removed = 4, 40, 0
    done = asyncio.Event()

    async def produce(lane: int) -> None:
        for number in range(pushed):
            await push_n(store, "q", partition=f"p{lane}", start=number)

    async def remove() -> None:
        nonlocal removed
        while await names_of(store) != ["Default"] or not done.is_set():
            await store.database.fetch("age", AGE_EVERYTHING)
            await store.prune("completed_retention", limit=1000)
            removed += (await store.prune_partitions(0, limit=100)).partitions

    removing = asyncio.ensure_future(remove())
    consuming = asyncio.ensure_future(consume_all(store, lanes * pushed))
    async with asyncio.timeout(60):
        await asyncio.gather(*(produce(lane) for lane in range(lanes)))
        found = await consuming
        done.set()
        await removing
    assert found == {f"p{lane}": list(range(pushed)) for lane in range(lanes)}
    assert removed >= lanes
    assert await store.verify() == []
    await store.close()


async def names_of(store: PostgresStore) -> list[str]:
    return [partition.name for partition in await store.partitions("q")]


async def consume_all(store: PostgresStore, messages: int) -> dict[str, list[int]]:
    """The numbers by partition, in the order in which they came."""
    found: dict[str, list[int]] = {}
    while sum(map(len, found.values())) < messages:
        popped = await pop(store, "q", batch=20, partitions=4)
        for message in popped.messages():
            found.setdefault(message.partition, []).append(message.json()["n"])
        if popped:
            assert (await ack(store, lease_id=popped.lease_id)).success
    return found


# --- Retention and eviction -------------------------------------------------------------------------------


async def aged(stage: Stage, clock: SetClock, **policy: int | bool) -> tuple[Actor, Actor]:
    """Two actors, and a queue with four old messages, each pushed alone."""
    a, b = await stage.actors(2)
    await configure(a.store, "q", retention_enabled=True, **policy)
    for number in range(1, 5):
        await push_n(a.store, "q", start=number)
    await b.store.subscribe("q", QUEUE_MODE, Subscription())
    clock.advance(AGE + 1)
    return a, b


async def test_lease_that_was_taken_first_protects(stage: Stage, clock: SetClock) -> None:
    """B leases and holds on; A finds the messages free, waits for the cursor, looks again and leaves them."""
    a, b = await aged(stage, clock, retention_seconds=AGE)
    await b.begin()
    popped = await pop(b.store, "q", batch=2)
    waiting = await stage.blocked(a.store.prune("retention", limit=10), a, by=b)
    await b.commit()
    assert (await waiting).messages == 0
    assert numbers(popped) == [1, 2]
    assert (await ack(b.store, lease_id=popped.lease_id)).messages == 2
    assert len(await listed(a.store, "q")) == 4


async def test_pop_does_not_wait_for_pruning(stage: Stage, clock: SetClock) -> None:
    a, b = await aged(stage, clock, retention_seconds=AGE)
    await push_n(a.store, "q", partition="young", start=5)
    await a.begin()
    assert (await a.store.prune("retention", limit=10)).messages == 4
    assert numbers(await pop(b.store, "q", batch=9)) == [5]
    await a.commit()
    assert not await pop(b.store, "q", batch=9)


async def test_push_that_waits_for_pruning_is_numbered_after_what_went(stage: Stage, clock: SetClock) -> None:
    a, b = await aged(stage, clock, retention_seconds=AGE)
    await a.begin()
    assert (await a.store.prune("retention", limit=10)).messages == 4
    waiting = await stage.blocked(push_n(b.store, "q", start=5), b, by=a)
    await a.commit()
    [receipt] = await waiting
    assert receipt.seq == 5
    assert numbers(await pop_all(b.store, "q")) == [5]


async def test_pruning_that_waits_for_a_push_keeps_its_wake_up(stage: Stage, clock: SetClock) -> None:
    a, b = await aged(stage, clock, retention_seconds=AGE)
    await b.begin()
    await push_n(b.store, "q", start=5)
    waiting = await stage.blocked(a.store.prune("retention", limit=10), a, by=b)
    await b.commit()
    assert (await waiting).messages == 4
    assert numbers(await pop(b.store, "q", batch=9)) == [5]


async def test_partition_that_somebody_holds_for_long_is_left_out(stage: Stage, clock: SetClock) -> None:
    """Not for ever: the others are pruned meanwhile, and it in the next round, oldest first."""
    a, b = await aged(stage, clock, retention_seconds=AGE)
    await a.store.push([batch("q", 1, partition="free", start=8)])
    clock.advance(AGE + 1)
    await b.begin()
    await push_n(b.store, "q", start=5)
    first = await a.store.prune("retention", limit=3)
    assert first.messages == 0
    assert (await a.store.prune("retention", after=first.next, limit=3)).messages == 1
    assert await b.sql("show lock_timeout") != "1s"
    await b.commit()
    assert [view.message.seq for view in await listed(a.store, "q", partition="Default")] == [1, 2, 3, 4, 5]
    later = await a.store.prune("retention", after=first.next, limit=3)
    assert later.messages == 0, "nothing goes before what is older"
    assert (await a.store.prune("retention", limit=10)).messages == 4
    assert await a.sql("show lock_timeout") == "10s"


async def test_seek_back_before_completed_retention_keeps_the_messages(stage: Stage, clock: SetClock) -> None:
    a, b = await aged(stage, clock, completed_retention_seconds=AGE)
    await pop_all(b.store, "q")
    await b.begin()
    await b.store.seek("q", QUEUE_MODE, Position("start"))
    waiting = await stage.blocked(a.store.prune("completed_retention", limit=10), a, by=b)
    await b.commit()
    assert (await waiting).messages == 0
    assert numbers(await pop_all(b.store, "q")) == [1, 2, 3, 4]


async def test_policy_that_is_switched_off_in_this_moment_rules(stage: Stage, clock: SetClock) -> None:
    a, b = await aged(stage, clock, retention_seconds=AGE)
    await b.begin()
    await configure(b.store, "q", retention_enabled=False, retention_seconds=AGE)
    waiting = await stage.blocked(a.store.prune("retention", limit=10), a, by=b)
    await b.commit()
    assert (await waiting).messages == 0
    assert len(await listed(a.store, "q")) == 4


async def test_limit_that_is_set_in_this_moment_is_counted_right(stage: Stage, clock: SetClock) -> None:
    a, b = await aged(stage, clock, max_wait_seconds=AGE)
    await a.begin()
    assert (await a.store.prune("eviction", limit=10)).messages == 4
    waiting = await stage.blocked(configure(b.store, "q", max_size=2), b, by=a)
    await a.commit()
    await waiting
    receipts = await push_n(b.store, "q", 2, start=5)
    assert receipts[0].depth == 2


async def test_two_who_prune_at_once_remove_everything_once(stage: Stage, clock: SetClock) -> None:
    a, b = await aged(stage, clock, retention_seconds=AGE)
    await a.begin()
    assert (await a.store.prune("retention", limit=10)).messages == 4
    waiting = await stage.blocked(b.store.prune("retention", limit=10), b, by=a)
    await a.commit()
    assert (await waiting).messages == 0
    [removal] = await a.store.removals()
    assert removal.messages == 4
    assert (await lag_of(a.store, "q")).lag == 0


async def test_traffic_and_pruning_at_full_speed_keep_every_invariant(dsn: str) -> None:
    """On the real clock: what is delivered is in order, and no message that is not too old is missing."""
    store = PostgresStore(dsn)
    await configure(store, "q", retention_enabled=True, completed_retention_seconds=1, max_size=10_000)
    await store.subscribe("q", QUEUE_MODE, Subscription())
    pushed = 40

    async def produce(lane: int) -> None:
        for number in range(pushed):
            await push_n(store, "q", 5, partition=f"p{lane}", start=5 * number)

    async def prune() -> None:
        while True:
            await store.database.fetch("age", AGE_EVERYTHING)
            await store.prune("completed_retention", limit=7)

    pruning = asyncio.ensure_future(prune())
    consuming = asyncio.ensure_future(consume_all(store, 3 * 5 * pushed))
    async with asyncio.timeout(60):
        await asyncio.gather(*(produce(lane) for lane in range(3)))
        found = await consuming
    pruning.cancel()
    await asyncio.wait([pruning])
    assert found == {f"p{lane}": list(range(5 * pushed)) for lane in range(3)}
    while (await store.prune("completed_retention", limit=1000)).next is not None:
        pass
    assert await store.verify() == []
    await store.close()
