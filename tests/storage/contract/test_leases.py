"""Live leases, and how busy each group is."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lockstep.core.records import LeaseInfo, Utilisation
from lockstep.errors import QueueNotFound
from lockstep.storage.base import Store
from support.builders import ack, batch, configure, pop, pop_all, push_n
from support.clock import SetClock


async def test_lease_tells_what_it_holds(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=60)
    [receipt, *_] = await push_n(store, "q", 5, partition="p")
    clock.advance(5)
    popped = await pop(store, "q", group="g", batch=3)
    leased_at = clock.now
    await ack(store, lease_id=popped.lease_id, seq=1)
    clock.advance(1)
    assert popped.lease_id is not None
    assert await store.leases() == [
        LeaseInfo(
            lease_id=popped.lease_id,
            queue="q",
            partition="p",
            partition_id=receipt.partition_id,
            group="g",
            first_seq=2,
            last_seq=3,
            attempt=1,
            leased_at=leased_at,
            expires_at=leased_at + timedelta(seconds=60),
        )
    ]


async def test_lease_tells_its_attempt(store: Store, clock: SetClock) -> None:
    await push_n(store, "q")
    await pop(store, "q", lease_seconds=10)
    clock.advance(10)
    await pop(store, "q")
    [lease] = await store.leases()
    assert (lease.attempt, lease.leased_at) == (2, clock.now)


async def test_leases_come_by_deadline(store: Store, clock: SetClock) -> None:
    await store.push([batch("q", 1, partition=name) for name in "abc"])
    for name, seconds in [("a", 30), ("b", 10), ("c", 20)]:
        await pop(store, "q", partition=name, lease_seconds=seconds)
    assert [lease.partition for lease in await store.leases()] == ["b", "c", "a"]
    assert [lease.partition for lease in await store.leases(limit=2)] == ["b", "c"]
    clock.advance(10)
    assert [lease.partition for lease in await store.leases()] == ["c", "a"]


async def test_leases_expiring_soon(store: Store) -> None:
    await store.push([batch("q", 1, partition=name) for name in "abc"])
    for name, seconds in [("a", 30), ("b", 10), ("c", 20)]:
        await pop(store, "q", partition=name, lease_seconds=seconds)
    soon = await store.leases(expiring_within=timedelta(seconds=25))
    assert [lease.partition for lease in soon] == ["b", "c"]
    assert await store.leases(expiring_within=timedelta(seconds=5)) == []


async def test_leases_of_one_queue(store: Store) -> None:
    await store.push([batch("q", 1), batch("r", 1)])
    await pop(store, "q")
    await pop(store, "r")
    assert [lease.queue for lease in await store.leases(queue="r")] == ["r"]
    with pytest.raises(QueueNotFound):
        await store.leases(queue="nowhere")


async def test_released_lease_is_gone(store: Store) -> None:
    await push_n(store, "q", 2)
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id)
    assert await store.leases() == []


# --- Utilisation


def busy(**expected: int) -> Utilisation:
    counts = dict.fromkeys(
        ["partitions", "partitions_leased", "partitions_ready", "partitions_waiting", "partitions_stopped"], 0
    )
    return Utilisation(queue="q", group="__QUEUE_MODE__", **{**counts, **expected})


async def test_utilisation_of_every_state(store: Store, clock: SetClock) -> None:
    await configure(store, "q", retry_limit=0, on_exhausted="stop", lease_seconds=100)
    names = ["drained", "leased", "stopped", "ready", "ready-too", "expired"]
    await store.push([batch("q", 1, partition=name) for name in names])
    await pop(store, "q", partition="drained", auto_ack=True)
    await pop(store, "q", partition="leased")
    await pop(store, "q", partition="expired", lease_seconds=1)
    popped = await pop(store, "q", partition="stopped")
    await ack(store, lease_id=popped.lease_id, status="failed")
    await configure(store, "q", delay_seconds=50)
    await push_n(store, "q", partition="waiting")
    clock.advance(1)
    # `Default`, which configure made, is drained too.
    assert await store.utilisation() == [
        busy(
            partitions=8,
            partitions_leased=1,
            partitions_ready=3,
            partitions_waiting=1,
            partitions_stopped=1,
        )
    ]


async def test_utilisation_counts_backing_off_as_waiting(store: Store, clock: SetClock) -> None:
    await push_n(store, "q")
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id, status="failed")
    assert await store.utilisation() == [busy(partitions=1, partitions_waiting=1)]
    clock.advance(1)
    assert await store.utilisation() == [busy(partitions=1, partitions_ready=1)]


async def test_utilisation_comes_by_queue_then_group(store: Store) -> None:
    for queue in ("b", "a"):
        await push_n(store, queue)
        for group in ("z", "Y"):
            await pop_all(store, queue, group=group)
    assert [(u.queue, u.group) for u in await store.utilisation()] == [
        ("a", "Y"),
        ("a", "z"),
        ("b", "Y"),
        ("b", "z"),
    ]
    assert [(u.queue, u.group) for u in await store.utilisation(queue="b")] == [("b", "Y"), ("b", "z")]
    with pytest.raises(QueueNotFound):
        await store.utilisation(queue="nowhere")
