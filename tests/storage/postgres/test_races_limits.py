"""Queues with a max_size: never exceeded, and counted exactly, whoever pushes, consumes or configures meanwhile."""

from __future__ import annotations

import asyncio
import random

import pytest

from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import Ack, Subscription
from lockstep.errors import QueueFull
from lockstep.storage.postgres.store import PostgresStore
from support.builders import ack, batch, configure, finish_groups, numbers, pop, push_n
from support.sessions import Actor, Stage


async def prepared(stage: Stage, count: int, *, max_size: int) -> list[Actor]:
    """Actors whose stores know the queue, its partition and its group."""
    actors = await stage.actors(count)
    await configure(actors[0].store, "q", max_size=max_size)
    await actors[0].store.subscribe("q", QUEUE_MODE, Subscription())
    for actor in actors:
        await push_n(actor.store, "q")
        popped = await pop(actor.store, "q")
        assert (await ack(actor.store, lease_id=popped.lease_id)).success
    return actors


async def pending(actor: Actor) -> int:
    return (await actor.store.queue("q")).pending


# --- Push against push ------------------------------------------------------------------------------------


async def test_push_that_waits_for_the_last_place_finds_the_queue_full(stage: Stage) -> None:
    """A takes the last place and holds on; B pushes, even to another partition, and waits; A commits: full."""
    a, b = await prepared(stage, 2, max_size=3)
    await a.begin()
    await push_n(a.store, "q", 3)
    waiting = await stage.blocked(push_n(b.store, "q", partition="other"), b, by=a)
    await a.commit()
    with pytest.raises(QueueFull) as full:
        await waiting
    assert (full.value.details["depth"], full.value.details["max_size"]) == (3, 3)


async def test_push_that_waits_for_the_last_place_gets_it_if_the_other_rolls_back(stage: Stage) -> None:
    """A takes the last place and holds on; B pushes and waits; A rolls back: B's message is stored."""
    a, b = await prepared(stage, 2, max_size=3)
    await a.begin()
    await push_n(a.store, "q", 3)
    waiting = await stage.blocked(push_n(b.store, "q", partition="other"), b, by=a)
    await a.rollback()
    [receipt] = await waiting
    assert (receipt.depth, receipt.remaining) == (1, 2)


async def test_ack_in_flight_makes_no_room_before_it_commits(stage: Stage) -> None:
    """A acks and holds on; B's push, to another partition, finds the queue full; A commits: it fits."""
    a, b = await prepared(stage, 2, max_size=2)
    await a.store.push([batch("q"), batch("q", partition="other")])
    popped = await pop(a.store, "q", partition="Default")
    await b.store.push([])
    await a.begin()
    assert (await ack(a.store, lease_id=popped.lease_id)).success
    with pytest.raises(QueueFull):
        await push_n(b.store, "q", partition="other", start=2)
    await a.commit()
    assert [receipt.depth for receipt in await push_n(b.store, "q", partition="other", start=2)] == [2]


@pytest.mark.parametrize("with_group", [True, False])
async def test_many_pushes_fill_the_queue_exactly(dsn: str, with_group: bool) -> None:
    """Eight stores push twice as much as fits, to shared and own partitions: what is accepted is what fits."""
    stores = [PostgresStore(dsn) for _ in range(8)]
    await configure(stores[0], "q", max_size=60)
    if with_group:
        await stores[0].subscribe("q", QUEUE_MODE, Subscription())
    accepted = 0
    depths_when_full: set[int] = set()

    async def fill(store: PostgresStore, index: int) -> None:
        nonlocal accepted
        for number in range(16):
            try:
                receipts = await push_n(store, "q", partition=f"p{(index + number) % 5}")
            except QueueFull as full:
                depths_when_full.add(full.details["depth"])
            else:
                accepted += len(receipts)

    await asyncio.gather(*(fill(store, index) for index, store in enumerate(stores)))
    assert accepted == 60
    assert depths_when_full == {60}
    assert (await stores[0].queue("q")).pending == 60
    assert await stores[0].verify() == []
    await asyncio.gather(*(store.close() for store in stores))


async def test_producers_and_consumers_at_once_never_exceed_the_limit(dsn: str) -> None:
    """Four producers and three consumers of two groups; every receipt tells a depth within the limit."""
    stores = [PostgresStore(dsn) for _ in range(7)]
    await configure(stores[0], "q", max_size=12)
    for group in (QUEUE_MODE, "other"):
        await stores[0].subscribe("q", group, Subscription())
    producing = 4
    depths: list[int] = []

    async def produce(store: PostgresStore, seed: int) -> None:
        nonlocal producing
        choose = random.Random(seed)
        stored = 0
        while stored < 30:
            count = choose.randrange(1, 4)
            try:
                receipts = await push_n(store, "q", count, partition=f"p{choose.randrange(4)}")
            except QueueFull as full:
                depths.append(full.details["depth"])
            else:
                depths.extend(receipt.depth or 0 for receipt in receipts)
                stored += count
        producing -= 1

    async def consume(store: PostgresStore, group: str, auto_ack: bool) -> None:
        while True:
            popped = await pop(store, "q", group=group, batch=5, partitions=2, auto_ack=auto_ack)
            if popped.lease_id is not None:
                await store.ack([Ack(lease_id=popped.lease_id)])
            if not popped and not producing and not (await store.depth("q", group)).pending:
                return

    await asyncio.gather(
        *(produce(store, seed) for seed, store in enumerate(stores[:4])),
        consume(stores[4], QUEUE_MODE, True),
        consume(stores[5], QUEUE_MODE, False),
        consume(stores[6], "other", False),
    )
    assert max(depths) <= 12
    assert (await stores[0].queue("q")).pending == 0
    assert await stores[0].verify() == []
    await asyncio.gather(*(store.close() for store in stores))


async def test_pushes_to_two_limited_queues_lock_them_in_one_order(stage: Stage) -> None:
    """A does not know the names yet, and C keeps it from creating a partition of `a`; B knows them. Queue `b` is
    older than `a`, so that the order of the names is not the order of the ids."""
    a, b, c = await stage.actors(3)
    for queue in ("b", "a"):
        await configure(b.store, queue, max_size=100)
        await push_n(b.store, queue)
    await c.begin()
    await c.sql(
        "insert into lockstep.partition (queue_id, name, created_at) "
        "select id, 'new', now() from lockstep.queue where name = 'a' returning 1"
    )
    first = await stage.blocked(a.store.push([batch("a", partition="new"), batch("b", partition="new")]), a, by=c)
    second = await stage.blocked(b.store.push([batch("b", start=2), batch("a", start=2)]), b, by=a)
    await c.rollback()
    await asyncio.gather(first, second)


# --- Configure against all --------------------------------------------------------------------------------


async def test_limit_set_while_a_push_is_in_flight_counts_it(stage: Stage) -> None:
    """A pushes to an unlimited queue and holds on; C sets max_size and waits; A commits: its messages count."""
    a, c = await prepared(stage, 2, max_size=0)
    await a.begin()
    await push_n(a.store, "q", 2)
    waiting = await stage.blocked(configure(c.store, "q", max_size=3), c, by=a)
    await a.commit()
    await waiting
    with pytest.raises(QueueFull):
        await push_n(a.store, "q", 2)
    assert [receipt.depth for receipt in await push_n(a.store, "q")] == [3]


async def test_limit_set_while_a_push_rolls_back_does_not_count_it(stage: Stage) -> None:
    """A pushes to an unlimited queue and holds on; C sets max_size and waits; A rolls back."""
    a, c = await prepared(stage, 2, max_size=0)
    await a.begin()
    await push_n(a.store, "q", 2)
    waiting = await stage.blocked(configure(c.store, "q", max_size=3), c, by=a)
    await a.rollback()
    await waiting
    assert [receipt.depth for receipt in await push_n(a.store, "q", 3)] == [3, 3, 3]


async def test_push_that_waits_for_a_limit_being_set_obeys_it(stage: Stage) -> None:
    """C sets max_size and holds on; A, who knows of no limit, pushes and waits; C commits: A's push is counted."""
    a, c = await prepared(stage, 2, max_size=0)
    await c.begin()
    await configure(c.store, "q", max_size=2)
    waiting = await stage.blocked(push_n(a.store, "q", 2), a, by=c)
    await c.commit()
    assert [receipt.depth for receipt in await waiting] == [2, 2]
    with pytest.raises(QueueFull):
        await push_n(a.store, "q")


async def test_push_that_waits_for_a_limit_that_is_too_small_is_refused(stage: Stage) -> None:
    """C sets max_size and holds on; A pushes more than that and waits; C commits: full, nothing is stored."""
    a, c = await prepared(stage, 2, max_size=0)
    await c.begin()
    await configure(c.store, "q", max_size=2)
    waiting = await stage.blocked(push_n(a.store, "q", 3), a, by=c)
    await c.commit()
    with pytest.raises(QueueFull):
        await waiting
    assert await pending(a) == 0


async def test_limit_set_while_an_ack_is_in_flight_counts_what_is_left(stage: Stage) -> None:
    """A acks one of two messages and holds on; C sets max_size and waits; A commits: one message counts."""
    a, c = await prepared(stage, 2, max_size=0)
    await push_n(a.store, "q", 2)
    popped = await pop(a.store, "q")
    await a.begin()
    assert (await ack(a.store, lease_id=popped.lease_id)).success
    waiting = await stage.blocked(configure(c.store, "q", max_size=3), c, by=a)
    await a.commit()
    await waiting
    assert [receipt.depth for receipt in await push_n(a.store, "q", 2)] == [3, 3]


@pytest.mark.parametrize("left", [0, 3])
@pytest.mark.parametrize("whole_lease", [True, False])
async def test_ack_that_waits_for_a_limit_being_set_is_counted(stage: Stage, whole_lease: bool, left: int) -> None:
    """C sets max_size and holds on; A acks and waits; C commits: there is room for what was acked. Where messages are
    left, it is the cursor that A waits for, and not the partition."""
    a, c = await prepared(stage, 2, max_size=0)
    await push_n(a.store, "q", 2 + left)
    popped = await pop(a.store, "q", batch=2)
    await c.begin()
    await configure(c.store, "q", max_size=2 + left)
    step = ack(a.store, lease_id=popped.lease_id, seq=None if whole_lease else next(popped.messages()).seq)
    waiting = await stage.blocked(step, a, by=c)
    await c.commit()
    assert (await waiting).success
    assert await a.store.verify() == []
    room = 2 if whole_lease else 1
    assert [receipt.depth for receipt in await push_n(a.store, "q", room)] == [2 + left] * room


async def test_auto_ack_pop_before_a_limit_being_set_reaches_its_partition(stage: Stage) -> None:
    """B's push holds up C, who sets max_size; A pops with auto_ack elsewhere and commits; B commits: all counts."""
    a, b, c = await prepared(stage, 3, max_size=0)
    await push_n(a.store, "q", 2, partition="other")
    await b.begin()
    await push_n(b.store, "q")
    waiting = await stage.blocked(configure(c.store, "q", max_size=9), c, by=b)
    assert numbers(await pop(a.store, "q", partition="other", auto_ack=True)) == [1]
    await b.commit()
    await waiting
    assert [receipt.depth for receipt in await push_n(a.store, "q")] == [3]


async def test_limit_is_raised_and_dropped_among_pushes_and_acks(dsn: str) -> None:
    """One store changes max_size over and over while others push and consume: the counts stay exact."""
    stores = [PostgresStore(dsn) for _ in range(6)]
    await configure(stores[0], "q")
    await stores[0].subscribe("q", QUEUE_MODE, Subscription())
    working = 5

    async def work(store: PostgresStore, index: int) -> None:
        nonlocal working
        for number in range(15):
            lanes = [batch("q", partition=f"p{(index + number + more) % 4}") for more in range(2)]
            await store.push(lanes)
            popped = await pop(store, "q", partitions=2, batch=2, auto_ack=number % 3 == 0)
            if popped.lease_id is not None:
                assert [outcome.success for outcome in await store.ack([Ack(lease_id=popped.lease_id)])] == [True]
        working -= 1

    async def reconfigure(store: PostgresStore) -> None:
        sizes = [0, 1000]
        while working:
            await configure(store, "q", max_size=sizes[0])
            assert await store.verify() == []
            sizes.reverse()
        await configure(store, "q", max_size=1000)

    await asyncio.gather(reconfigure(stores[5]), *(work(store, i) for i, store in enumerate(stores[:5])))
    assert await stores[0].verify() == []
    await asyncio.gather(*(store.close() for store in stores))


async def test_two_configures_at_once_follow_each_other(stage: Stage) -> None:
    """B holds the queue row as a push does that creates a partition; A and C configure; B commits: both are done."""
    a, b, c = await prepared(stage, 3, max_size=0)
    await b.begin()
    await push_n(b.store, "q", partition="new")
    first = await stage.blocked(configure(a.store, "q", max_size=1, priority=1), a, by=b)
    second = stage.start(configure(c.store, "q", max_size=2, priority=2))
    await stage.until_blocked(c.pid)
    await b.commit()
    await asyncio.gather(first, second)
    options = (await a.store.queue("q")).options
    assert (options.max_size, options.priority) in {(1, 1), (2, 2)}


# --- Counters -----------------------------------------------------------------------------------------------


async def neighbours(stage: Stage) -> tuple[Actor, Actor]:
    """Two actors whose backends count in the same slot, if counters are spread over backends at all."""
    slots: dict[int, Actor] = {}
    while True:
        actor = await stage.actor()
        if actor.pid % 16 in slots:
            return slots[actor.pid % 16], actor
        slots[actor.pid % 16] = actor


async def test_acks_over_two_limited_queues_count_in_one_order(stage: Stage) -> None:
    """A acks in x/p1 and y/p4, B in y/p2 and x/p3; C holds A up between its two: neither waits in a circle."""
    a, b = await neighbours(stage)
    c = await stage.actor()
    for queue in ("x", "y"):
        await configure(a.store, queue, max_size=100)
        await a.store.subscribe(queue, QUEUE_MODE, Subscription())
    for queue, partition in (("x", "p1"), ("y", "p2"), ("x", "p3"), ("y", "p4")):
        await push_n(a.store, queue, partition=partition)
    held = {name: await pop(a.store, queue, partition=name) for queue, name in (("x", "p1"), ("y", "p4"))}
    held |= {name: await pop(b.store, queue, partition=name) for queue, name in (("y", "p2"), ("x", "p3"))}
    await c.begin()
    [last] = held["p4"].partition_ids
    await c.sql("select 1 from lockstep.cursor where partition_id = $1 for no key update", last)
    first = await stage.blocked(
        a.store.ack([Ack(lease_id=held[name].lease_id, seq=1) for name in ("p1", "p4")]), a, by=c
    )
    second = stage.start(b.store.ack([Ack(lease_id=held[name].lease_id, seq=1) for name in ("p2", "p3")]))
    await stage.until_done_or_blocked(second, b)
    await c.commit()
    assert [outcome.success for outcome in [*await first, *await second]] == [True] * 4


async def test_group_deleted_while_its_lease_is_acked(stage: Stage) -> None:
    """A waits for a cursor that C holds; B deletes the group and waits for nobody; C lets go: A's lease is gone, or was
    acked before. Then nothing of the group is left, nor counted."""
    a, b, c = await prepared(stage, 3, max_size=10)
    await a.store.push([batch("q", partition="p1"), batch("q", partition="p2")])
    held = await pop(a.store, "q", partitions=2, batch=2)
    assert len(held) == 2
    await c.begin()
    ids = held.partition_ids
    await c.sql("select 1 from lockstep.cursor where partition_id = $1 for no key update", max(ids))
    acking = stage.start(a.store.ack([Ack(lease_id=held.lease_id)]))
    await stage.until_blocked(a.pid)
    assert await b.store.delete_group(QUEUE_MODE, queue="q") == 3
    await c.commit()
    assert [outcome.error for outcome in await acking] in [["lease_lost"], [None]]
    await finish_groups(b.store)
    assert await b.sql("select count(*) from lockstep.cursor") == 0
    assert await b.sql("select array_agg(distinct group_id) from lockstep.depth") == [0]


async def test_acks_of_ordered_and_shared_groups_count_in_one_order(stage: Stage) -> None:
    """A has counted for the first queue; B acks in both, of its ordered group in the first and its shared one in the
    second, and waits for A's count with none of its own; A counts for the second. Two sessions share their counters if
    their pids are alike."""
    sessions: dict[int, Actor] = {}
    while True:
        b = await stage.actor()
        a = sessions.setdefault(b.pid % 16, b)
        if a is not b:
            break
    for queue in ("first", "second"):
        await configure(a.store, queue, max_size=100)
        for group, mode in (("ordered", None), ("shared", "shared")):
            await a.store.subscribe(queue, group, Subscription(), mode=mode)
        for partition in ("a", "b"):
            await push_n(a.store, queue, partition=partition)
    leases: dict[tuple[str, str], str] = {}
    for partition in ("a", "b"):
        for queue, group in (("first", "ordered"), ("second", "shared")):
            popped = await pop(a.store, queue, group=group, partition=partition)
            leases[partition, queue] = str(popped.lease_id)

    await a.begin()
    assert (await ack(a.store, lease_id=leases["a", "first"])).success
    both = [Ack(lease_id=leases["b", "second"]), Ack(lease_id=leases["b", "first"])]
    waiting = await stage.blocked(b.store.ack(both), b, by=a)
    assert (await ack(a.store, lease_id=leases["a", "second"])).success
    await a.commit()
    assert [outcome.error for outcome in await waiting] == [None, None]


async def test_group_is_deleted_between_an_ack_and_a_push_of_one_transaction(stage: Stage) -> None:
    """Both change how full the queue is, the deletion of the group in another order."""
    a, b = await prepared(stage, 2, max_size=10)
    await push_n(a.store, "q", 2)
    popped = await pop(a.store, "q", group="g", batch=2)
    queue_id, partition_id = await b.sql("select id from lockstep.queue where name = 'q'"), popped.partition_ids[0]
    await a.begin()
    await a.sql("select lockstep.lock_for_transaction($1, $2, '{}')", [queue_id], [partition_id])
    await ack(a.store, lease_id=popped.lease_id)
    waiting = await stage.blocked(b.store.delete_group("g", queue="q"), b, by=a)
    await push_n(a.store, "q")
    await a.commit()
    assert await waiting == 1
    assert await a.store.verify() == []
