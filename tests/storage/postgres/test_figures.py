"""The figures of lists: counted where that is little, and taken from the last walk where it is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

from lockstep.config import load
from lockstep.core.records import Ack, Position, Subscription
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, dead_letter_by_dlq, pop, pop_all, push_n
from support.clock import SetClock

MINUTE = 60
PARTITIONS = 25


@pytest_asyncio.fixture
async def store(database_dsn: str, clock: SetClock) -> AsyncIterator[PostgresStore]:
    """A store that counts up to 12 partitions and cursors, and walks over two partitions at a time."""
    config = load({"figures_exact_max": 12, "samples_partitions_max": 2}, environ={})
    store = PostgresStore(database_dsn, config=config, clock=clock)
    await store.open()
    yield store
    await store.close()


async def fill(store: PostgresStore, queue: str = "large", partitions: int = PARTITIONS) -> None:
    """Two messages for each partition, of which the group g has done some and holds some."""
    await store.push([batch(queue, 2, partition=f"p{number:02}") for number in range(partitions)])
    await store.subscribe(queue, "g", Subscription())
    await store.subscribe(queue, "shared", Subscription(), mode="shared")
    await pop(store, queue, group="g", partitions=5, batch=5, auto_ack=True)
    await pop(store, queue, group="g", partitions=3, batch=4)
    await pop(store, queue, group="shared", partitions=4, batch=6)


async def lists(store: PostgresStore, *, exact: bool) -> list[object]:
    """All figures, without the time at which they were counted."""
    return [
        [_timeless(one) for one in await store.queues(exact=exact)],
        [_timeless(one) for one in await store.groups(exact=exact)],
        [_timeless(one) for one in await store.namespaces(exact=exact)],
        [_timeless(one) for one in await store.tasks(exact=exact)],
        [_timeless(one) for one in await store.utilisation(exact=exact)],
        _timeless(await store.depth("large", "g", exact=exact)),
        _timeless(await store.depth("large", "shared", exact=exact)),
    ]


def _timeless(one: object) -> dict[str, object]:
    return {name: getattr(one, name) for name in type(one).__struct_fields__ if name != "figures_at"}  # type: ignore[attr-defined]


async def test_walk_in_slices_finds_what_a_count_finds(store: PostgresStore, clock: SetClock) -> None:
    await fill(store)
    await push_n(store, "small", 3)
    await dead_letter_by_dlq(store, "large", 2, partition="dead")
    receipts = await push_n(store, "large", 5, partition="cut")
    await store.remove_message(receipts[2].partition_id, receipts[2].message_id)
    clock.advance(MINUTE)
    assert await store.sample() == 2
    assert await lists(store, exact=False) == await lists(store, exact=True)
    walked, counted = await store.overview(), await store.overview(exact=True)
    assert (walked.figures_at, counted.figures_at) == (clock.now, None)
    for name in ("partitions", "messages", "pending", "processing", "completed", "dead_letters", "cursors_with_lag"):
        assert getattr(walked, name) == getattr(counted, name)
    for spread in ("lag_seconds", "lag_messages"):
        for name in ("average", "minimum", "maximum"):
            assert getattr(getattr(walked, spread), name) == pytest.approx(getattr(getattr(counted, spread), name))
    assert walked.lag_messages.minimum <= walked.lag_messages.median <= walked.lag_messages.maximum


async def test_large_queue_says_when_it_was_counted_and_a_small_one_is_counted_now(
    store: PostgresStore, clock: SetClock
) -> None:
    await fill(store)
    await push_n(store, "small", 3)
    clock.advance(MINUTE)
    await store.sample()
    walked_at = clock.now
    clock.advance(10)
    await push_n(store, "large", 1, partition="p00")
    await push_n(store, "small", 1, start=4)
    large, small = await store.queues()
    assert (large.messages, large.figures_at) == (2 * PARTITIONS, walked_at)
    assert (small.messages, small.pending, small.figures_at) == (4, 4, None)
    [g, shared] = await store.groups(queue="large")
    assert {g.figures_at, shared.figures_at} == {walked_at}
    assert (await store.queue("large")).figures_at == walked_at
    asked = await store.queue("large", exact=True)
    assert (asked.messages, asked.figures_at) == (2 * PARTITIONS + 1, None)
    assert (await store.overview()).messages == 2 * PARTITIONS + 4


async def test_queue_that_has_grown_since_the_walk_is_large(store: PostgresStore, clock: SetClock) -> None:
    await push_n(store, "grows")
    clock.advance(MINUTE)
    await store.sample()
    assert (await store.queue("grows")).figures_at is None
    await store.push([batch("grows", partition=f"p{number}") for number in range(PARTITIONS)])
    found = await store.queue("grows")
    assert (found.partitions, found.figures_at) == (1, clock.now)


@pytest.mark.parametrize("walking", [False, True])
async def test_figures_of_a_large_queue_are_not_known_until_its_first_walk_ends(
    store: PostgresStore, clock: SetClock, walking: bool
) -> None:
    await fill(store)
    await push_n(store, "small", 3)
    await store.subscribe("small", "g", Subscription())
    clock.advance(MINUTE)
    if walking:
        await store.sample(seconds_max=0)
    large, small = await store.queues()
    counts = ("partitions", "messages", "pending", "processing", "dead_letters", "oldest_at", "figures_at")
    assert [getattr(large, name) for name in counts] == [None] * 7
    assert (small.messages, small.pending) == (3, 3)
    names = ("partitions", "partitions_with_lag", "lag", "in_flight", "unread", "leases", "figures_at")
    late = await store.subscribe("large", "late", Subscription("new"))
    for group in [late, *await store.groups(queue="large")]:
        assert [getattr(group, name) for name in names] == [None] * 7
    depth = await store.depth("large", "g")
    assert (depth.pending, depth.partitions_pending, depth.leased, depth.unread) == (None,) * 4
    [use] = await store.utilisation(queue="small")
    assert use.partitions_ready == 1
    assert {use.partitions_leased for use in await store.utilisation(queue="large")} == {None}
    [namespace_large, namespace_small] = await store.namespaces()
    assert (namespace_large.messages, namespace_small.messages) == (None, 3)
    [task] = await store.tasks()
    assert (task.queues, task.partitions, task.messages, task.pending) == (2, None, None, None)
    overview = await store.overview()
    assert (overview.queues, overview.messages, overview.pending, overview.completed) == (2, None, None, None)
    assert (overview.cursors_with_lag, overview.lag_seconds, overview.lag_messages) == (None, None, None)
    assert (await store.queue("large", exact=True)).messages == 2 * PARTITIONS
    await store.sample()
    assert (await store.queue("large")).messages == 2 * PARTITIONS
    assert (await store.overview()).messages == 2 * PARTITIONS + 3


async def test_walk_that_has_not_ended_leaves_the_figures_before(store: PostgresStore, clock: SetClock) -> None:
    await fill(store)
    clock.advance(MINUTE)
    await store.sample()
    walked_at = clock.now
    clock.advance(MINUTE)
    await push_n(store, "large", 7, partition="p00")
    assert await store.sample(seconds_max=0) == 0
    assert (await store.queue("large")).figures_at == walked_at
    turns = 1
    while not await store.sample(seconds_max=0):
        turns += 1
    assert turns == PARTITIONS // 2
    found = await store.queue("large")
    assert (found.messages, found.figures_at) == (2 * PARTITIONS + 7, clock.now)
    [_, second] = await store.samples(queue="large")
    assert (second.pushed, second.pending, second.seconds) == (7, found.pending, MINUTE)


async def test_partition_that_goes_during_a_walk_changes_no_count(store: PostgresStore, clock: SetClock) -> None:
    await fill(store)
    await pop_all(store, "large", group="done")
    clock.advance(MINUTE)
    await store.sample()
    for partition in ("p00", f"p{PARTITIONS - 1}"):
        await store.clear("large", partition=partition)
    clock.advance(MINUTE)
    await store.sample(seconds_max=0)
    for _ in range(2):
        await store.prune_partitions(1, limit=10)
        clock.advance(1)
    assert len(await store.partitions("large")) == PARTITIONS - 2
    await push_n(store, "large", 3, partition="p05")
    while not await store.sample(seconds_max=0):
        pass
    [_, second] = await store.samples(queue="large")
    assert second.pushed == 3
    assert (await store.queue("large")).partitions == PARTITIONS - 2


async def test_group_that_began_since_the_walk_counts_as_it_began(store: PostgresStore, clock: SetClock) -> None:
    await fill(store)
    clock.advance(MINUTE)
    await store.sample()
    await store.subscribe("large", "late", Subscription())
    await store.subscribe("large", "new", Subscription("new"))
    found = {one.name: one for one in await store.groups(queue="large")}
    assert (found["late"].lag, found["late"].figures_at) == (2 * PARTITIONS, clock.now)
    assert (found["new"].lag, found["new"].oldest_at) == (0, None)
    assert {(one.in_flight, one.partitions) for one in (found["late"], found["new"])} == {(None, None)}
    assert (await store.queue("large")).processing is None, "of a sum, a part is not known"
    clock.advance(MINUTE)
    await store.sample()
    assert [_timeless(one) for one in await store.groups()] == [
        _timeless(one) for one in await store.groups(exact=True)
    ]


async def test_group_that_is_moved_or_deleted_is_counted_by_the_next_walk(
    store: PostgresStore, clock: SetClock
) -> None:
    await fill(store)
    clock.advance(MINUTE)
    await store.sample()
    await store.seek("large", "g", Position("end"))
    await store.delete_group("shared", queue="large")
    assert [one.name for one in await store.groups()] == ["g"]
    clock.advance(MINUTE)
    await store.sample()
    [g] = await store.groups()
    assert (g.lag, g.in_flight, g.partitions_with_lag, g.figures_at) == (0, 0, 0, clock.now)


async def test_figures_add_up(store: PostgresStore, clock: SetClock) -> None:
    await fill(store)
    await fill(store, "other", partitions=2)
    clock.advance(MINUTE)
    await store.sample()
    queues, groups, overview = await store.queues(), await store.groups(), await store.overview()
    assert overview.messages == sum(one.messages for one in queues)
    assert overview.pending == sum(one.pending for one in queues)
    assert overview.processing == sum(one.processing for one in queues) == sum(one.in_flight for one in groups)
    assert all(one.lag == one.unread + one.in_flight for one in groups)
    assert [sum(one.pending for one in await store.namespaces())] == [overview.pending]
    assert sum(one.partitions_with_lag for one in groups) == overview.cursors_with_lag


async def test_lag_tells_what_is_in_flight(store: PostgresStore, clock: SetClock) -> None:
    await push_n(store, "q", 5)
    popped = await pop(store, "q", group="g", batch=3)
    clock.advance(2)
    [group] = await store.groups()
    assert (group.lag, group.in_flight, group.unread) == (5, 3, 2)
    assert group.oldest_at == clock.now - timedelta(seconds=2)
    await store.ack([Ack(lease_id=popped.lease_id)])
    [group] = await store.groups()
    assert (group.lag, group.in_flight, group.unread) == (2, 0, 2)


async def test_second_walk_at_the_same_time_does_nothing(store: PostgresStore, clock: SetClock) -> None:
    await fill(store)
    clock.advance(MINUTE)
    queue_id = (await store.queue("large")).id
    async with store.database.connection() as one:
        transaction = one.transaction()
        await transaction.start()
        await one.fetch("select * from lockstep.sample($1, 2, $2)", queue_id, clock.now)
        assert await store.sample() == 0
        await transaction.rollback()
    assert await store.sample() == 1
