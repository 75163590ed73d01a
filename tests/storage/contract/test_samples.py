"""Samples: exact differences, what is pending, and how long they are kept."""

from __future__ import annotations

from lockstep.core.maintenance import Sample
from lockstep.core.records import Position, Subscription
from lockstep.storage.base import Store
from support.builders import batch, configure, dead_letter_by_dlq, pop, pop_all, push_n
from support.clock import SetClock

MINUTE = 60


async def sample(store: Store, clock: SetClock, queue: str = "q") -> Sample:
    """A minute later: the queue's newest sample."""
    clock.advance(MINUTE)
    assert await store.sample() == len(await store.queues())
    newest = (await store.samples(queue=queue))[-1]
    assert newest.at == clock.now
    return newest


async def test_first_sample_covers_the_time_since_the_queue_was_made(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 5)
    await pop(store, "q", batch=2, auto_ack=True)
    clock.advance(30)
    taken = await sample(store, clock)
    assert taken == Sample(
        at=clock.now, queue="q", seconds=90, pushed=5, completed=2, dead=0, pending=3, lag_seconds=90
    )


async def test_each_sample_counts_what_came_since_the_last(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 5)
    await sample(store, clock)
    await store.push([batch("q", 2, partition="a"), batch("q", 1, partition="b"), batch("other", 9)])
    await pop_all(store, "q")
    taken = await sample(store, clock)
    assert (taken.seconds, taken.pushed, taken.completed, taken.pending, taken.lag_seconds) == (60, 3, 8, 0, 0)
    taken = await sample(store, clock)
    assert (taken.pushed, taken.completed, taken.pending) == (0, 0, 0)
    assert sum(one.pushed for one in await store.samples(queue="other")) == 9


async def test_pending_is_that_of_the_furthest_group_and_completed_of_all(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 4)
    clock.advance(10)
    await push_n(store, "q", 4, start=5)
    await pop(store, "q", group="a", batch=3, auto_ack=True)
    await pop(store, "q", group="b", batch=6, auto_ack=True)
    taken = await sample(store, clock)
    assert (taken.completed, taken.pending, taken.lag_seconds) == (9, 5, 70)
    await pop(store, "q", group="a", batch=2, auto_ack=True)
    taken = await sample(store, clock)
    assert (taken.completed, taken.pending, taken.lag_seconds) == (2, 3, 120)


async def test_all_stored_messages_are_pending_while_there_is_no_group(store: Store, clock: SetClock) -> None:
    await configure(store, "q", retention_enabled=True, retention_seconds=MINUTE)
    await push_n(store, "q", 4)
    clock.advance(1)
    await push_n(store, "q", 3, start=5)
    taken = await sample(store, clock)
    assert (taken.pending, taken.lag_seconds) == (7, 61)
    assert (await store.prune("retention", limit=9)).messages == 4
    taken = await sample(store, clock)
    assert (taken.pushed, taken.pending, taken.lag_seconds) == (0, 3, 120)


async def test_dead_letters_are_not_completed(store: Store, clock: SetClock) -> None:
    await dead_letter_by_dlq(store, "q", 2)
    await push_n(store, "q", 3, start=3)
    await pop_all(store, "q")
    taken = await sample(store, clock)
    assert (taken.pushed, taken.completed, taken.dead) == (5, 3, 2)
    assert (await sample(store, clock)).dead == 0


async def test_new_group_counts_from_where_it_began(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 4)
    await sample(store, clock)
    await store.subscribe("q", "new", Subscription("new"))
    await pop(store, "q", group="all", batch=3, auto_ack=True)
    assert (await sample(store, clock)).completed == 3


async def test_group_that_is_moved_back_has_completed_nothing(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 4)
    await pop_all(store, "q", group="g")
    await sample(store, clock)
    await store.seek("q", "g", Position("start"))
    taken = await sample(store, clock)
    assert (taken.completed, taken.pending) == (0, 4)
    await pop_all(store, "q", group="g")
    assert (await sample(store, clock)).completed == 4


async def test_partition_that_is_removed_changes_no_count(store: Store, clock: SetClock) -> None:
    await store.push([batch("q", 5, partition="gone"), batch("q", 2, partition="stays")])
    await pop_all(store, "q", group="g")
    await sample(store, clock)
    await store.push([batch("q", 4, partition="gone")])
    await pop_all(store, "q", group="g")
    await store.clear("q", partition="gone")
    await store.prune_partitions(1, limit=10)
    clock.advance(1)
    assert (await store.prune_partitions(1, limit=10)).partitions == 1
    await push_n(store, "q", 1, partition="stays")
    taken = await sample(store, clock)
    assert (taken.pushed, taken.completed) == (5, 4)


async def test_second_sample_in_the_same_instant_is_none(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 2)
    assert await store.sample() == 0
    await sample(store, clock)
    await push_n(store, "q", 3)
    assert await store.sample() == 0
    assert (await sample(store, clock)).pushed == 3


async def test_samples_are_found_by_queue_and_time_and_in_pages(store: Store, clock: SetClock) -> None:
    for queue in ("b", "a"):
        await push_n(store, queue)
    start = clock.now
    for _ in range(3):
        await sample(store, clock, "a")
    found = await store.samples()
    assert [((one.at - start).total_seconds(), one.queue) for one in found] == [
        (at, queue) for at in (60, 120, 180) for queue in ("a", "b")
    ]
    assert await store.samples(queue="b") == found[1::2]
    assert await store.samples(from_at=found[2].at, to_at=found[4].at) == found[2:4]
    assert await store.samples(queue="b", after=found[1]) == found[3::2]
    paged: list[Sample] = []
    while page := await store.samples(after=paged[-1] if paged else None, limit=4):
        paged += page
    assert paged == found


async def test_history_is_bounded_and_outlives_the_queue(store: Store, clock: SetClock) -> None:
    await configure(store, "q", retention_enabled=True, retention_seconds=1)
    await push_n(store, "q")
    old = await sample(store, clock)
    await store.prune("retention", limit=1)
    await push_n(store, "q")
    new = await sample(store, clock)
    await store.prune("retention", limit=1)
    await store.delete_queue("q")
    assert await store.samples() == [old, new]
    assert await store.prune_history(MINUTE, limit=10) == 0, "what is just that old stays"
    clock.advance(1)
    assert await store.prune_history(MINUTE, limit=10) == 2
    assert await store.samples() == [new]
    assert [removal.at for removal in await store.removals()] == [new.at]
    clock.advance(MINUTE)
    await push_n(store, "q")
    await sample(store, clock)
    assert (await store.samples())[-1].pushed == 1, "a queue of the same name is another queue"


async def test_history_goes_in_batches(store: Store, clock: SetClock) -> None:
    await push_n(store, "q")
    for _ in range(5):
        await sample(store, clock)
    clock.advance(1000)
    assert [await store.prune_history(MINUTE, limit=2) for _ in range(4)] == [2, 2, 1, 0]
