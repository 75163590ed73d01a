"""Expired messages are passed in slices: how many at a time, what a pop finds behind them, and what fails alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import pytest_asyncio

from lockstep.config import Config
from lockstep.core.maintenance import Place
from lockstep.core.policy import queue_options
from lockstep.core.records import Ack, DeadLetterFilter, Subscription
from lockstep.engine.maintenance.eviction import Eviction
from lockstep.storage.postgres.store import PostgresStore
from support.builders import SMALL_SLICES, batch, configure, numbers, pop, push_n
from support.clock import SetClock
from support.sessions import Stage

_LARGEST = "select coalesce(max(n), 0) from (select count(*) as n from lockstep.dead_letter group by xmin::text) t"


@pytest_asyncio.fixture
async def store(dsn: str, clock: SetClock) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(dsn, config=SMALL_SLICES, clock=clock)
    yield made
    await made.close()


async def fill(store: PostgresStore, clock: SetClock, *, dead_queue: bool, own: bool = False) -> None:
    """Twenty messages in three partitions that are expired, and one behind them that is not."""
    if dead_queue:
        await configure(store, "d")
    await configure(
        store, "q", expire_seconds=0 if own else 60, lease_seconds=1, dead_queue="d" if dead_queue else None
    )
    at = clock.now
    for number, count in enumerate((11, 2, 7)):
        columns = {"expires_at": [at] * count} if own else {}
        await push_n(store, "q", count, partition=f"p{number}", start=100 * number, **columns)
    clock.advance(60)
    await push_n(store, "q", partition="p9", start=7)


async def walk(store: PostgresStore) -> int:
    passed, place = 0, None
    while True:
        pruned = await store.prune("expiry", after=place, limit=100)
        assert pruned.problem is None
        passed += pruned.messages
        place = pruned.next
        if place is None:
            return passed


async def total(store: PostgresStore, queue: str = "q") -> int:
    return (await store.dead_letters(DeadLetterFilter(queue=queue))).total


@pytest.mark.parametrize("mode", ["ordered", "shared"])
@pytest.mark.parametrize("dead_queue", [False, True])
@pytest.mark.parametrize("own", [False, True])
async def test_pop_finds_what_is_fresh_and_passes_the_others_in_slices(
    store: PostgresStore, stage: Stage, clock: SetClock, mode: str, dead_queue: bool, own: bool
) -> None:
    await fill(store, clock, dead_queue=dead_queue, own=own)
    await store.subscribe("q", "g", Subscription(), mode=mode)  # type: ignore[arg-type]
    assert numbers(await pop(store, "q", group="g", batch=10)) == [7]
    assert await total(store) == 3
    assert numbers(await pop(store, "q", group="g", batch=10)) == []
    assert await total(store) == 20
    assert await stage.observer.fetchval(_LARGEST) <= 3
    if dead_queue:
        copies = await pop(store, "d", batch=100, partitions=10)
        assert sorted(numbers(copies)) == sorted([*range(11), 100, 101, *range(200, 207)])
    assert await store.verify() == []


@pytest.mark.parametrize("dead_queue", [False, True])
async def test_duty_passes_them_in_slices(
    store: PostgresStore, stage: Stage, clock: SetClock, dead_queue: bool
) -> None:
    await fill(store, clock, dead_queue=dead_queue)
    await store.subscribe("q", "g", Subscription())
    await store.subscribe("q", "s", Subscription(), mode="shared")
    assert await walk(store) == 40
    assert await total(store) == 40
    assert await stage.observer.fetchval(_LARGEST) <= 3
    assert numbers(await pop(store, "q", group="g")) == numbers(await pop(store, "q", group="s")) == [7]


async def test_in_flight_they_are_passed_in_slices(store: PostgresStore, stage: Stage, clock: SetClock) -> None:
    await configure(store, "d")
    await configure(store, "q", expire_seconds=60, lease_seconds=10, retry_limit=5, dead_queue="d")
    await push_n(store, "q", 10)
    await pop(store, "q", group="s", mode="shared", batch=10)
    clock.advance(61)
    await push_n(store, "q", start=50)
    assert numbers(await pop(store, "q", group="s", batch=10)) == [50]
    assert await total(store) == 3
    assert numbers(await pop(store, "q", group="s", batch=10)) == []
    assert await total(store) == 10
    assert await stage.observer.fetchval(_LARGEST) <= 3
    assert await store.verify() == []


async def test_leases_that_ran_out_for_the_last_time_end_in_slices(
    store: PostgresStore, stage: Stage, clock: SetClock
) -> None:
    """They are one range, of which all die."""
    await configure(store, "d")
    await configure(store, "q", lease_seconds=10, retry_limit=0, dead_queue="d")
    await push_n(store, "q", 10)
    await pop(store, "q", group="s", mode="shared", batch=10)
    await push_n(store, "q", start=50)
    clock.advance(11)
    assert numbers(await pop(store, "q", group="s", batch=10)) == [50]
    assert await total(store) == 3
    assert numbers(await pop(store, "q", group="s", batch=10)) == []
    assert await total(store) == 10
    assert await stage.observer.fetchval(_LARGEST) <= 3
    [lag] = await store.lag("q", group="s")
    assert lag.in_flight == 1


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_pop_that_has_passed_enough_takes_what_is_fresh(dsn: str, clock: SetClock, mode: str) -> None:
    """However much is left: and each pop passes some more."""
    config = Config(expire_messages_max=3, expire_seconds_max=0.001)
    store = PostgresStore(dsn, config=config, clock=clock)
    await configure(store, "q", expire_seconds=60, lease_seconds=60)
    for number in range(3):
        await push_n(store, "q", 1000, partition=f"p{number}")
    clock.advance(60)
    await push_n(store, "q", 5, partition="p9", start=7)
    await store.subscribe("q", "g", Subscription(), mode=mode)  # type: ignore[arg-type]
    found = []
    totals = [0]
    for _ in range(5):
        popped = await pop(store, "q", group="g", mode=mode, batch=1)
        found += numbers(popped)
        if mode == "ordered":
            await store.ack([Ack(lease_id=popped.lease_id)])
        totals.append(await total(store))
    assert found == [7, 8, 9, 10, 11]
    assert all(later > before for before, later in pairwise(totals))
    assert totals[-1] < 3000
    await store.close()


@pytest.mark.parametrize("queue", ["q", None], ids=["of-the-queue", "of-the-namespace"])
async def test_what_is_in_flight_and_expired_does_not_count_as_a_partition(
    dsn: str, clock: SetClock, queue: str | None
) -> None:
    """A pop of one partition takes what is fresh in another one, or in another queue, however much is left."""
    config = Config(expire_messages_max=3, expire_seconds_max=0.001)
    store = PostgresStore(dsn, config=config, clock=clock)
    await store.configure("q", queue_options(expire_seconds=60, lease_seconds=30, priority=1), namespace="n")
    await store.configure("r", queue_options(lease_seconds=300), namespace="n")
    await push_n(store, "r")
    await push_n(store, "q", 1000)
    for _ in range(10):
        await pop(store, "q", group="g", mode="shared", batch=100)
    await pop(store, "r", group="g", mode="shared")
    clock.advance(61)
    await push_n(store, "q" if queue else "r", partition="fresh", start=7)
    namespace = None if queue else "n"
    assert numbers(await pop(store, queue, group="g", namespace=namespace, mode="shared", batch=10)) == [7]
    assert await total(store) < 1000
    await store.close()


async def test_single_expired_messages_of_many_partitions_are_passed_in_slices(
    store: PostgresStore, stage: Stage, clock: SetClock
) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=1)
    await store.push([batch("q", partition=f"p{number}") for number in range(20)])
    clock.advance(60)
    assert numbers(await pop(store, "q", batch=10, partitions=5)) == []
    assert await total(store) == 20
    assert await stage.observer.fetchval(_LARGEST) <= 3


async def test_queue_that_fails_does_not_keep_others_from_being_expired(
    store: PostgresStore, stage: Stage, clock: SetClock
) -> None:
    await configure(store, "dead")
    for queue in ("a", "b", "c"):
        await configure(store, queue, expire_seconds=60, lease_seconds=1, dead_queue="dead")
        await push_n(store, queue, 2)
        await store.subscribe(queue, "g", Subscription())
    spoilt = (await store.queue("b")).id
    await stage.observer.execute(
        "update lockstep.segment set codec = 1, body = 'x', payloads = null where queue_id = $1", spoilt
    )
    store.context.segments.clear()
    clock.advance(60)
    report = await Eviction(store, Config()).run_once()
    assert report.effect["expiry"] == 4
    assert not report.more
    [problem] = report.problems
    assert problem.startswith("queue b: ")
    assert [await total(store, queue) for queue in ("a", "b", "c")] == [2, 0, 2]


async def test_source_whose_dead_letters_cannot_be_pushed_is_left_out(
    store: PostgresStore, stage: Stage, clock: SetClock
) -> None:
    """Somebody's transaction holds the partition to which they would go."""
    (holder,) = await stage.actors(1)
    await configure(store, "dead")
    await push_n(store, "dead", partition="p0")
    await configure(store, "q", expire_seconds=60, lease_seconds=1, dead_queue="dead")
    await store.push([batch("q", 2, partition=f"p{number}") for number in range(2)])
    await store.subscribe("q", "g", Subscription())
    clock.advance(60)
    await holder.begin()
    target = (await store.partition("dead", "p0")).id
    await holder.sql(f"select 1 from lockstep.partition where id = {target} for no key update")
    place: Place | None = None
    passed = 0
    while True:
        pruned = await store.prune("expiry", after=place, limit=100)
        passed += pruned.messages
        place = pruned.next
        assert pruned.problem is None
        if place is None:
            break
    assert passed == 2
    await holder.commit()
    assert await walk(store) == 2
