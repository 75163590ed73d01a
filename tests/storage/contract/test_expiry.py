"""Expiry: what is too old is not delivered, never under a live lease, and goes where the queue says."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lockstep.core.messages import Batch, NewSchedule
from lockstep.core.records import DeadLetterFilter, PopRequest, Subscription
from lockstep.storage.base import Store
from lockstep.storage.postgres.cache import SegmentCache
from lockstep.storage.postgres.store import PostgresStore
from support.builders import ack, attempts_of, configure, lag_of, numbers, pop, push_n
from support.clock import SetClock


async def dead(store: Store, queue: str = "q") -> list[tuple[int, str | None, int]]:
    """Seq, error and attempts of a queue's dead letters, by id."""
    page = await store.dead_letters(DeadLetterFilter(queue=queue))
    return [(one.message.seq, one.error, one.attempts) for one in sorted(page.items, key=lambda one: one.id)]


async def expire(store: Store, *, limit: int = 100) -> int:
    """A whole walk of the duty."""
    passed, place = 0, None
    while True:
        pruned = await store.prune("expiry", after=place, limit=limit)
        passed += pruned.messages
        place = pruned.next
        if place is None:
            return passed


async def test_expired_message_becomes_a_dead_letter(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=10)
    await push_n(store, "q", 2)
    clock.advance(30)
    await push_n(store, "q", 1, start=3)
    clock.advance(30)
    assert numbers(await pop(store, "q", batch=10)) == [3]
    assert await dead(store) == [(1, "expired", 0), (2, "expired", 0)]


async def test_a_message_expires_exactly_at_its_time(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=10)
    await push_n(store, "q")
    clock.advance(59.999)
    popped = await pop(store, "q")
    assert numbers(popped) == [1]
    await ack(store, lease_id=popped.lease_id, status="retry")
    clock.advance(0.001)
    assert numbers(await pop(store, "q")) == []
    assert await dead(store) == [(1, "expired", 0)]


async def test_groups_whose_message_expires_at_once_get_dead_letters_by_name(store: Store, clock: SetClock) -> None:
    """However old the groups are."""
    await configure(store, "q", expire_seconds=60, lease_seconds=10)
    await push_n(store, "q")
    for group in ("c", "a", "b"):
        await store.subscribe("q", group, Subscription())
    clock.advance(60)
    assert await expire(store) == 3
    page = await store.dead_letters(DeadLetterFilter(queue="q"))
    assert [one.group for one in sorted(page.items, key=lambda one: one.id)] == ["a", "b", "c"]


async def test_dropped_message_leaves_nothing(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=10, on_expired="drop")
    await push_n(store, "q", 3)
    clock.advance(60)
    assert numbers(await pop(store, "q", batch=10)) == []
    assert await dead(store) == []
    assert (await lag_of(store, "q")).lag == 0


async def test_nothing_expires_under_a_live_lease(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=50)
    await push_n(store, "q", 2)
    clock.advance(30)
    popped = await pop(store, "q", batch=2)
    clock.advance(40)
    assert await expire(store) == 0
    assert (await ack(store, lease_id=popped.lease_id)).messages == 2
    assert await dead(store) == []


async def test_failed_delivery_of_an_expired_message_tells_its_attempts(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=50, retry_limit=5)
    await push_n(store, "q", 2)
    await pop(store, "q", batch=2)
    clock.advance(60)
    assert numbers(await pop(store, "q")) == []
    assert await dead(store) == [(1, "expired", 1), (2, "expired", 0)]


async def test_exhausted_before_it_is_expired(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=50, retry_limit=0)
    await push_n(store, "q", 2)
    await pop(store, "q", batch=2)
    clock.advance(60)
    await pop(store, "q")
    assert await dead(store) == [(1, "lease expired", 1), (2, "expired", 0)]


async def test_message_may_have_a_time_of_its_own(store: Store, clock: SetClock) -> None:
    soon, later = clock() + timedelta(seconds=10), clock() + timedelta(seconds=100)
    await push_n(store, "q", 4, expires_at=[None, soon, later, None])
    first = await pop(store, "q", batch=10)
    assert numbers(first) == [1, 2, 3, 4]
    assert [message.expires_at for message in first.messages()] == [None, soon, later, None]
    await ack(store, lease_id=first.lease_id, status="retry")
    clock.advance(10)
    # A claim ends before one that expired; the next pop meets it.
    popped = await pop(store, "q", batch=10)
    assert numbers(popped) == [1]
    await ack(store, lease_id=popped.lease_id)
    popped = await pop(store, "q", batch=10)
    assert numbers(popped) == [3, 4]
    assert await dead(store) == [(2, "expired", 0)]
    await ack(store, lease_id=popped.lease_id)


async def test_own_time_wins_over_the_queue(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=10)
    late, soon = clock() + timedelta(seconds=600), clock() + timedelta(seconds=5)
    await push_n(store, "q", 3, expires_at=[late, soon, None])
    clock.advance(60)
    assert numbers(await pop(store, "q", batch=10)) == [1]


async def test_own_time_survives_packing_and_reading_back(store: Store, clock: SetClock) -> None:
    at = clock() + timedelta(seconds=600, microseconds=7)
    payloads = [b'"%s"' % (b"x" * 2000), b"1"]
    await store.push([Batch.of("q", payloads, expires_at=[at, None]), Batch.of("q", [b"2"], partition="b")])
    if isinstance(store, PostgresStore):
        store.context.memory.segments = SegmentCache(1_000_000)  # nothing of it is in memory
    popped = await pop(store, "q", batch=10, partitions=10)
    assert [message.expires_at for message in popped.messages()] == [at, None, None]


async def test_stopped_partition_keeps_what_expired(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=10, retry_limit=0, on_exhausted="stop")
    await push_n(store, "q")
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id, status="failed")
    clock.advance(100)
    assert await expire(store) == 0
    assert (await lag_of(store, "q")).stopped


async def test_duty_passes_what_nobody_pops(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=10, max_size=3)
    await store.pop([PopRequest(queue="q"), PopRequest(queue="q", group="g")])
    await push_n(store, "q", 2)
    await push_n(store, "q", 1, partition="b")
    clock.advance(60)
    assert await expire(store) == 6
    assert len(await dead(store)) == 6
    assert (await store.depth("q", "g")).pending == 0
    assert [(r.kind, r.messages) for r in await store.removals()] == [("expiry", 6)]
    await push_n(store, "q", 3)  # there is room again


async def test_duty_passes_what_waits_for_its_retry(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=10, retry_delay_ms=3_600_000)
    await push_n(store, "q", 2)
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id, status="failed", error="no")
    clock.advance(60)
    assert await expire(store) == 2
    assert await dead(store) == [(1, "expired", 1), (2, "expired", 0)]


async def test_duty_walks_over_many_queues(store: Store, clock: SetClock) -> None:
    for name in ("a", "a b", "b", "c"):
        await configure(store, name, expire_seconds=10, lease_seconds=10)
        await store.pop([PopRequest(queue=name)])
        await push_n(store, name)
    clock.advance(10)
    assert await expire(store) == 4
    assert await expire(store) == 0


@pytest.mark.parametrize("auto_ack", [True, False])
async def test_one_partition_by_name(store: Store, clock: SetClock, auto_ack: bool) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=10)
    await push_n(store, "q", partition="a")
    clock.advance(50)
    await push_n(store, "q", 1, start=2, partition="a")
    clock.advance(20)
    assert numbers(await pop(store, "q", partition="a", batch=5, auto_ack=auto_ack)) == [2]
    assert attempts_of(await pop(store, "q", partition="a")) == []


async def test_own_time_is_kept_while_a_message_waits(store: Store, clock: SetClock) -> None:
    at = clock() + timedelta(seconds=100)
    columns = Batch.of("q", [b"1", b"2"], expires_at=[at, None]).columns
    await store.push([Batch("q", "p", columns, NewSchedule(delay_seconds=60.0))])
    clock.advance(60)
    await store.promote(limit=10)
    assert [message.expires_at for message in (await pop(store, "q", batch=5)).messages()] == [at, None]


# --- In flight of shared groups -----------------------------------------------------------------------------


async def test_duty_passes_retries_of_shared_groups(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=10, max_size=4)
    await push_n(store, "q", 3)
    popped = await pop(store, "q", group="s", mode="shared", batch=3)
    messages = list(popped.messages())
    again_at = clock() + timedelta(seconds=3600)
    for message, status in zip(messages, ("retry", "failed", "completed"), strict=True):
        place = {"partition_id": message.partition_id, "seq": message.seq}
        retry_at = None if status == "completed" else again_at
        assert (await ack(store, lease_id=popped.lease_id, **place, status=status, retry_at=retry_at)).success
    clock.advance(59)
    assert await expire(store) == 0
    clock.advance(1)
    assert await expire(store) == 2
    assert await dead(store) == [(1, "expired", 1), (2, "expired", 1)]
    assert (await store.depth("q", "s")).pending == 0
    assert [(r.kind, r.messages) for r in await store.removals()] == [("expiry", 2)]
    assert await expire(store) == 0
    await push_n(store, "q", 4, start=4)  # there is room again
    assert await store.verify() == []


async def test_duty_passes_an_expired_lease_of_a_shared_group(store: Store, clock: SetClock) -> None:
    """As a pop would: the delivery failed, and is charged first."""
    await configure(store, "q", expire_seconds=60, lease_seconds=30, retry_limit=1, on_expired="dead")
    await push_n(store, "q", 2)
    await pop(store, "q", group="s", mode="shared", batch=2)
    clock.advance(60)
    assert await expire(store) == 2
    assert await dead(store) == [(1, "expired", 1), (2, "expired", 1)]


async def test_duty_meets_an_exhausted_message_of_a_shared_group(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=30, retry_limit=0)
    await push_n(store, "q", 2)
    await pop(store, "q", group="s", mode="shared", batch=2)
    clock.advance(60)
    assert await expire(store) == 2
    assert await dead(store) == [(1, "lease expired", 1), (2, "lease expired", 1)]


async def test_duty_leaves_what_a_shared_group_has_leased_or_stopped(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=10, retry_limit=0, on_exhausted="stop")
    await push_n(store, "q", 3)
    popped = await pop(store, "q", group="s", mode="shared", batch=1)
    await ack(store, lease_id=popped.lease_id, status="failed")
    clock.advance(55)
    popped = await pop(store, "q", group="s", batch=1)
    clock.advance(5)
    assert await expire(store) == 1, "only what is new"
    assert (await ack(store, lease_id=popped.lease_id)).messages == 1
    assert await dead(store) == [(3, "expired", 0)]
    assert (await store.depth("q", "s")).pending == 1


async def test_duty_takes_only_what_expired_out_of_a_range(store: Store, clock: SetClock) -> None:
    soon = clock() + timedelta(seconds=5)
    await push_n(store, "q", 5, expires_at=[None, soon, soon, None, soon])
    popped = await pop(store, "q", group="s", mode="shared", batch=5)
    await ack(store, lease_id=popped.lease_id, status="retry", retry_at=clock() + timedelta(seconds=60))
    clock.advance(5)
    assert await expire(store) == 3
    assert numbers(await pop(store, "q", group="s", batch=5)) == []
    clock.advance(55)
    assert numbers(await pop(store, "q", group="s", batch=5)) == [1, 4]


async def test_duty_walks_over_more_ranges_than_one_call_takes(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=60, lease_seconds=10, on_expired="drop")
    await configure(store, "r", expire_seconds=60, lease_seconds=10, on_expired="drop")
    for queue in ("q", "r"):
        for partition in ("a", "b"):
            await push_n(store, queue, 7, partition=partition)
            for number in range(7):
                popped = await pop(store, queue, group="s", mode="shared", partition=partition, batch=1)
                later = clock() + timedelta(seconds=3600 + number)  # so that each is a range of its own
                await ack(store, lease_id=popped.lease_id, status="retry", retry_at=later)
    clock.advance(60)
    assert await expire(store, limit=3) == 28
    assert await expire(store, limit=3) == 0
    assert [(await store.depth(queue, "s")).pending for queue in ("q", "r")] == [0, 0]


async def test_duty_pushes_retries_that_expired_to_the_dead_queue(store: Store, clock: SetClock) -> None:
    await configure(store, "dead")
    await configure(store, "q", expire_seconds=60, lease_seconds=10, dead_queue="dead")
    await push_n(store, "q", 2)
    popped = await pop(store, "q", group="s", mode="shared", batch=2)
    await ack(store, lease_id=popped.lease_id, status="retry", retry_at=clock() + timedelta(seconds=3600))
    clock.advance(60)
    assert await expire(store) == 2
    assert numbers(await pop(store, "dead", batch=5)) == [1, 2]
