"""Verify and repair of what shared groups have in flight: broken on purpose, found, and mended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from lockstep.storage.postgres.store import PostgresStore
from support.builders import configure, pop, push_n, seqs
from support.clock import SetClock

IN_FLIGHT = "partition_id = (select id from lockstep.partition where name = 'p')"
DAMAGES = {
    "handed-out-too-far": f"update lockstep.delivery set to_seq = 9 where {IN_FLIGHT} and from_seq = 3",
    "never-handed-out": f"update lockstep.delivery set from_seq = 5, to_seq = 6 where {IN_FLIGHT} and from_seq = 3",
    "in-flight-twice": f"update lockstep.delivery set to_seq = 3 where {IN_FLIGHT} and from_seq = 1",
    "upside-down": f"update lockstep.delivery set to_seq = 0 where {IN_FLIGHT} and from_seq = 1",
    "lease-without-a-time": f"update lockstep.delivery set leased_at = null where {IN_FLIGHT} and from_seq = 1",
    "of-an-ordered-group": "update lockstep.consumer_group set mode = 'ordered' where name = 'workers'",
    "of-no-group": f"update lockstep.delivery set group_id = 987654 where {IN_FLIGHT} and from_seq = 1",
}
each_damage = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


@pytest_asyncio.fixture
async def store(dsn: str, clock: SetClock) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(dsn, clock=clock)
    await configure(store, "q", max_size=100)
    await push_n(store, "q", 6, partition="p")
    for _ in range(2):
        await pop(store, "q", group="workers", mode="shared", partition="p", batch=2)
    yield store
    await store.close()


@pytest_asyncio.fixture
async def session(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@each_damage
async def test_damage_is_found_and_repaired(
    store: PostgresStore, session: asyncpg.Connection[Any], damage: str
) -> None:
    assert await store.verify() == []
    await session.execute(damage)
    found = await store.verify(queue="q")
    assert "delivery_wrong" in {problem.kind for problem in found}
    assert {problem.kind for problem in found} <= {"delivery_wrong", "depth_wrong"}
    assert all(problem.repaired for problem in await store.repair())
    assert await store.verify() == []


async def test_lease_that_was_mended_is_delivered_again(store: PostgresStore, session: asyncpg.Connection[Any]) -> None:
    await session.execute(DAMAGES["lease-without-a-time"])
    await store.repair()
    assert seqs(await pop(store, "q", group="workers", partition="p", batch=9)) == [1, 2, 5, 6]


@pytest.mark.parametrize("name", ["of-an-ordered-group", "upside-down"])
async def test_nothing_in_flight_is_lost_by_repair(
    store: PostgresStore, session: asyncpg.Connection[Any], clock: SetClock, name: str
) -> None:
    await session.execute(DAMAGES[name])
    await store.repair()
    clock.advance(1000)
    found = set()
    while got := seqs(await pop(store, "q", group="workers", partition="p", batch=9, auto_ack=True)):
        found.update(got)
    assert found == {1, 2, 3, 4, 5, 6}
