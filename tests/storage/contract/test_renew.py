"""Renew: more time for a live lease, and never less."""

from __future__ import annotations

import pytest

from lockstep.core.records import Renewal, Renewed
from lockstep.storage.base import Store
from support.builders import ack, batch, configure, pop, push_n, seqs
from support.clock import SetClock


async def renew(store: Store, lease_id: str | None, seconds: float | None = None) -> Renewed:
    assert lease_id is not None
    [renewed] = await store.renew([Renewal(lease_id=lease_id, seconds=seconds)])
    assert renewed.lease_id == lease_id
    return renewed


async def test_renew_moves_the_deadline(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=30)
    await push_n(store, "q")
    popped = await pop(store, "q")
    clock.advance(20)
    renewed = await renew(store, popped.lease_id, 60)
    assert (renewed.partitions, renewed.expires_at) == (1, clock.ahead(60))
    clock.advance(59.999_999)
    assert not await pop(store, "q")
    clock.advance(0.000_001)
    assert seqs(await pop(store, "q")) == [1]


async def test_renewed_lease_can_be_acked_after_its_first_deadline(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=30)
    await push_n(store, "q")
    popped = await pop(store, "q")
    await renew(store, popped.lease_id, 100)
    clock.advance(99)
    assert (await ack(store, lease_id=popped.lease_id)).success


async def test_renew_without_seconds_takes_the_queues_lease_time(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=30)
    await push_n(store, "q")
    popped = await pop(store, "q", lease_seconds=5)
    clock.advance(4)
    assert (await renew(store, popped.lease_id)).expires_at == clock.ahead(30)


@pytest.mark.parametrize("seconds", [1, 99.5, None])
async def test_renew_never_shortens(store: Store, clock: SetClock, seconds: float | None) -> None:
    await configure(store, "q", lease_seconds=50)
    await push_n(store, "q")
    popped = await pop(store, "q", lease_seconds=100)
    renewed = await renew(store, popped.lease_id, seconds)
    assert (renewed.partitions, renewed.expires_at) == (1, clock.ahead(100))
    [lease] = await store.leases()
    assert lease.expires_at == clock.ahead(100)


async def test_expired_lease_is_not_renewed(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=30)
    await push_n(store, "q")
    popped = await pop(store, "q")
    clock.advance(30)
    renewed = await renew(store, popped.lease_id, 60)
    assert (renewed.partitions, renewed.expires_at) == (0, None)
    assert seqs(await pop(store, "q")) == [1]


@pytest.mark.parametrize("garbage", ["garbage", "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"])
async def test_unknown_lease_is_not_renewed(store: Store, garbage: str) -> None:
    renewed = await renew(store, garbage, 60)
    assert (renewed.partitions, renewed.expires_at) == (0, None)


async def test_released_lease_is_not_renewed(store: Store) -> None:
    await push_n(store, "q", 2)
    popped = await pop(store, "q", batch=1)
    await ack(store, lease_id=popped.lease_id)
    assert (await renew(store, popped.lease_id, 60)).partitions == 0
    assert seqs(await pop(store, "q")) == [2]


async def test_stale_lease_does_not_renew_its_successor(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=30)
    await push_n(store, "q")
    stale = await pop(store, "q")
    clock.advance(30)
    live = await pop(store, "q")
    assert (await renew(store, stale.lease_id, 600)).partitions == 0
    [lease] = await store.leases()
    assert lease.expires_at == live.expires_at


async def test_renew_extends_every_partition_of_the_lease(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=30)
    await store.push([batch("q", 1, partition=name) for name in "abc"])
    popped = await pop(store, "q", batch=10, partitions=3)
    await ack(store, lease_id=popped.lease_id, partition_id=popped.partition_ids[0])
    clock.advance(10)
    renewed = await renew(store, popped.lease_id, 60)
    assert (renewed.partitions, renewed.expires_at) == (2, clock.ahead(60))
    assert [(lease.partition, lease.expires_at) for lease in await store.leases()] == [
        ("b", clock.ahead(60)),
        ("c", clock.ahead(60)),
    ]


async def test_renew_tells_the_earliest_deadline(store: Store, clock: SetClock) -> None:
    await configure(store, "shop.a", lease_seconds=100)
    await configure(store, "shop.b", lease_seconds=20)
    await store.push([batch("shop.a", 1), batch("shop.b", 1)])
    popped = await pop(store, namespace="shop", batch=2, partitions=2)
    renewed = await renew(store, popped.lease_id, 50)
    assert (renewed.partitions, renewed.expires_at) == (2, clock.ahead(50))
    renewed = await renew(store, popped.lease_id)
    assert (renewed.partitions, renewed.expires_at) == (2, clock.ahead(50))


async def test_renew_of_several_leases_in_one_call(store: Store, clock: SetClock) -> None:
    await store.push([batch("q", 1, partition=name) for name in "ab"])
    a, b = await pop(store, "q"), await pop(store, "q")
    assert a.lease_id is not None
    assert b.lease_id is not None
    renewed = await store.renew(
        [
            Renewal(lease_id=b.lease_id, seconds=900),
            Renewal(lease_id="garbage", seconds=900),
            Renewal(lease_id=a.lease_id, seconds=800),
        ]
    )
    assert [(r.lease_id, r.partitions, r.expires_at) for r in renewed] == [
        (b.lease_id, 1, clock.ahead(900)),
        ("garbage", 0, None),
        (a.lease_id, 1, clock.ahead(800)),
    ]


async def test_renew_counts_no_attempt(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=10)
    await push_n(store, "q")
    popped = await pop(store, "q")
    for _ in range(5):
        clock.advance(9)
        await renew(store, popped.lease_id)
    [lag] = await store.lag("q")
    assert (lag.attempts, lag.leased) == (0, True)


async def test_renew_of_nothing(store: Store) -> None:
    assert await store.renew([]) == []
