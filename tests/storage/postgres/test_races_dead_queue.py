"""Dead queues while others push, consume and configure: nothing is lost, doubled, or waits in a circle."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from lockstep.core.policy import queue_options
from lockstep.core.records import Ack, DeadLetterFilter, PopRequest
from lockstep.errors import InvalidOption, Unavailable
from lockstep.storage.postgres.store import PostgresStore
from support.builders import ack, configure, numbers, pop, pop_all, push_n
from support.sessions import Actor, Stage

FROM = "lockstep-dead-from-"


async def prepared(stage: Stage, count: int, **options: object) -> list[Actor]:
    """Actors, a queue with a dead queue, and a message in each, so that their partitions exist."""
    actors = await stage.actors(count)
    await configure(actors[0].store, "dead")
    await configure(actors[0].store, "q", dead_queue="dead", **options)
    for name in ("q", "dead"):
        await push_n(actors[0].store, name)
    return actors


async def test_ack_that_kills_waits_for_the_target_without_holding_a_cursor(stage: Stage) -> None:
    """A pushes to the dead queue and holds on; B's ack kills a message and waits; A acks that queue; A commits."""
    a, b = await prepared(stage, 2)
    popped = await pop(b.store, "q")
    await a.begin()
    await push_n(a.store, "dead", start=2)
    waiting = await stage.blocked(ack(b.store, lease_id=popped.lease_id, status="dlq"), b, by=a)
    free = "select 1 from lockstep.cursor where lease_id = $1::uuid for update nowait"
    assert await stage.observer.fetchval(free, popped.lease_id) == 1
    await a.commit()
    assert (await waiting).dead
    assert numbers(await pop(a.store, "dead", batch=10)) == [1, 2, 1]


async def test_pop_that_kills_does_not_wait_for_the_target(stage: Stage) -> None:
    """A pushes to the dead queue and holds on; B's pop meets an expired lease and gives way; A commits: it is there."""
    a, b = await prepared(stage, 2, retry_limit=0)
    await pop(b.store, "q", lease_seconds=0.001)
    await push_n(b.store, "q", start=2)
    await a.begin()
    await push_n(a.store, "dead", start=3)
    with pytest.raises(Unavailable):  # an actor tries everything once
        await pop(b.store, "q")
    await a.commit()
    assert numbers(await pop(b.store, "q")) == [2]
    assert numbers(await pop(b.store, "dead", batch=10)) == [1, 3, 1]


async def test_pop_that_kills_succeeds_once_the_target_is_free(stage: Stage, dsn: str) -> None:
    [a] = await prepared(stage, 1, retry_limit=0)
    store = PostgresStore(dsn)
    await pop(store, "q", lease_seconds=0.001)
    await a.begin()
    await push_n(a.store, "dead", start=3)
    popping = asyncio.create_task(pop(store, "q"))
    for _ in range(3):
        await stage.observer.fetchval("select 1")
    await a.commit()
    assert numbers(await popping) == []
    assert numbers(await pop(store, "dead", batch=10)) == [1, 3, 1]
    await store.close()


async def test_configure_waits_for_one_that_would_make_a_chain(stage: Stage) -> None:
    """A names B as its dead queue and holds on; B asks for one of its own and waits; A commits: refused."""
    a, b = await stage.actors(2)
    for name in ("x", "y", "z"):
        await configure(a.store, name)
    await a.begin()
    await configure(a.store, "x", dead_queue="y")
    waiting = await stage.blocked(configure(b.store, "y", dead_queue="z"), b, by=a)
    await a.commit()
    with pytest.raises(InvalidOption):
        await waiting


async def test_delete_waits_for_a_queue_that_begins_to_need_it(stage: Stage) -> None:
    a, b = await stage.actors(2)
    await configure(a.store, "dead")
    await a.begin()
    await configure(a.store, "q", dead_queue="dead")
    waiting = await stage.blocked(b.store.delete_queue("dead"), b, by=a)
    await a.rollback()
    assert await waiting


async def test_every_message_dies_once_whoever_is_at_work(dsn: str) -> None:
    """Consumers that fail, or vanish, in every way; others consume the dead queue and push to it."""
    stores = [PostgresStore(dsn) for _ in range(4)]
    await stores[0].open()
    await stores[0].configure("dead", queue_options())
    await stores[0].configure("q", queue_options(dead_queue="dead", retry_limit=0, lease_seconds=10))
    total = 120
    for number in range(total):
        await push_n(stores[0], "q", 1, partition=str(number % 6), start=number)
    seen: list[str] = []

    async def kill(store: PostgresStore, rng: random.Random) -> None:
        request = PopRequest(queue="q", batch=3, partitions=3, lease_seconds=0.02)
        idle = 0
        while idle < 30:
            [popped] = await store.pop([request])
            if not popped:
                idle += 1
                await asyncio.sleep(0.005)
                continue
            idle = 0
            if rng.random() < 0.7:
                status = rng.choice(["failed", "dlq"])
                acks = [Ack(lease_id=popped.lease_id, partition_id=id_, status=status) for id_ in popped.partition_ids]
                await store.ack(acks)

    async def consume(store: PostgresStore) -> None:
        while len(seen) < total:
            [popped] = await store.pop([PopRequest(queue="dead", batch=5, partitions=3, auto_ack=True)])
            seen.extend((message.headers or {})[FROM + "message-id"] for message in popped.messages())
            await asyncio.sleep(0.001)

    killers = [kill(store, random.Random(seed)) for seed, store in enumerate(stores[:3])]
    async with asyncio.timeout(60):
        await asyncio.gather(*killers, consume(stores[3]))
    assert Counter(seen).most_common(1)[0][1] == 1
    assert len(seen) == total
    assert (await stores[0].dead_letters(DeadLetterFilter(queue="q"))).total == total
    assert await pop_all(stores[0], "q") == []
    assert await stores[0].verify() == []
    for store in stores:
        await store.close()


async def test_redrive_of_a_dead_letter_and_of_its_copy_is_one(stage: Stage) -> None:
    """A redrives the dead letter and holds on; B sends the copy back and waits; A commits: B finds nothing."""
    a, b = await prepared(stage, 2)
    await pop_all(a.store, "dead")
    popped = await pop(a.store, "q")
    await ack(a.store, lease_id=popped.lease_id, status="dlq")
    await a.begin()
    assert await a.store.redrive(DeadLetterFilter()) == 1
    waiting = await stage.blocked(b.store.redrive_queue("dead"), b, by=a)
    await a.commit()
    assert await waiting == 0
    assert numbers(await pop(b.store, "q", batch=10)) == [1]


async def test_copy_is_left_to_who_holds_its_dead_letter(stage: Stage) -> None:
    """A has the dead letter, and not yet the partitions; B would send the copy back, and leaves it."""
    a, b = await prepared(stage, 2)
    await pop_all(a.store, "dead")
    popped = await pop(a.store, "q")
    await ack(a.store, lease_id=popped.lease_id, status="dlq")
    await a.begin()
    await a.sql("select 1 from lockstep.dead_letter for update")
    assert await b.store.redrive_queue("dead") == 0
    await a.rollback()
    assert await b.store.redrive_queue("dead") == 1
    assert await b.store.redrive(DeadLetterFilter()) == 0


async def test_redrive_waits_for_who_leases_the_copy(stage: Stage) -> None:
    """A leases the copy and holds on; B redrives its dead letter and waits; A commits: it is left alone."""
    a, b = await prepared(stage, 2)
    await pop_all(a.store, "dead")
    popped = await pop(a.store, "q")
    await ack(a.store, lease_id=popped.lease_id, status="dlq")
    await a.begin()
    assert len(await pop(a.store, "dead")) == 1
    waiting = await stage.blocked(b.store.redrive(DeadLetterFilter()), b, by=a)
    await a.commit()
    assert await waiting == 0
    assert (await b.store.dead_letters(DeadLetterFilter())).total == 1
