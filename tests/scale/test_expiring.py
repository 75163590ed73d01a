"""A million messages that expire at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockstep.core.maintenance import Place
from lockstep.core.records import DeadLetterFilter, MessageFilter, Subscription
from lockstep.engine.maintenance.eviction import Eviction
from lockstep.storage.postgres.store import PostgresStore
from scale.conftest import Scale
from support.builders import ack, batch, configure, numbers, pop
from support.clock import SetClock

Split = Callable[[int], list[int]]
PARTITIONS = 7


async def fill(store: PostgresStore, clock: SetClock, sizes: list[int], **options: object) -> None:
    """So many expired messages, and one in a partition behind them that is fresh."""
    await configure(store, "q", expire_seconds=60, lease_seconds=30, **options)
    await store.subscribe("q", "g", Subscription())
    for number, size in enumerate(sizes):
        await store.push([batch("q", size, partition=f"p{number % PARTITIONS}")])
    clock.advance(60)
    await store.push([batch("q", partition="fresh", start=7)])


async def expire(store: PostgresStore) -> int:
    passed, place = 0, None
    while True:
        pruned = await store.prune("expiry", after=place, limit=store.context.limits.slice_messages_max)
        assert pruned.problem is None
        passed += pruned.messages
        place = pruned.next
        if place is None:
            return passed


@pytest.mark.parametrize("on_expired", ["dead", "drop"])
async def test_pops_and_the_duty_get_through_them(
    store: PostgresStore, clock: SetClock, scale: Scale, batches: Split, on_expired: str
) -> None:
    count = scale(1_000_000)
    await fill(store, clock, batches(count), on_expired=on_expired)
    popped = await pop(store, "q", group="g", batch=10)
    assert numbers(popped) == [7], "what is fresh does not wait for what is not"
    await ack(store, lease_id=popped.lease_id)
    report = await Eviction(store, scale.config).run_once()
    assert report.problems == ()
    await expire(store)
    assert (await store.depth("q", "g")).pending == 0
    assert numbers(await pop(store, "q", group="g", batch=10)) == []
    found = await store.dead_letters(DeadLetterFilter(queue="q"), limit=100)
    assert found.total == (count if on_expired == "dead" else 0)
    assert len((await store.messages(MessageFilter(queue="q"))).items) == min(100, count + 1)


async def test_all_of_them_go_to_a_dead_queue(
    store: PostgresStore, clock: SetClock, scale: Scale, batches: Split
) -> None:
    """More than one segment can hold."""
    count = scale(100_000)
    await configure(store, "dead")
    await fill(store, clock, batches(count), dead_queue="dead")
    assert numbers(await pop(store, "q", group="g", batch=10)) == [7]
    await expire(store)
    assert (await store.queue("dead")).messages == count
    assert await store.clear("q") == count + 1
    assert await store.clear("dead", scope="unleased") == count
    assert await store.delete_queue("q")


async def test_expired_in_flight(store: PostgresStore, clock: SetClock, scale: Scale, batches: Split) -> None:
    """Leased by a shared group, in many ranges, none of which was acknowledged."""
    count = scale(200_000)
    await configure(store, "q", expire_seconds=60, lease_seconds=30)
    for size in batches(count):
        await store.push([batch("q", size)])
    while await pop(store, "q", group="g", mode="shared", batch=max(count // 100, 1)):
        pass
    clock.advance(61)
    await store.push([batch("q", partition="fresh", start=7)])
    assert numbers(await pop(store, "q", group="g", batch=10)) == [7]
    place: Place | None = None
    for _ in range(count):
        place = (await store.prune("expiry", after=place, limit=store.context.limits.slice_messages_max)).next
        if place is None:
            break
    assert (await store.dead_letters(DeadLetterFilter(queue="q"), limit=1)).total == count
