"""How many polls for queues that do not exist a store remembers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from lockstep.config import Config
from lockstep.core.records import FirstPollLimits, Subscription
from lockstep.storage.base import Store
from lockstep.storage.memory import MemoryStore
from lockstep.storage.postgres.store import PostgresStore
from support.builders import pop, push_n, seqs
from support.clock import SetClock

DAY = 86_400


async def polled(store: Store, queue: str) -> list[int]:
    return seqs(await pop(store, queue, group="g", batch=10, subscription=Subscription("new")))


@pytest_asyncio.fixture(params=["memory", "postgres"])
async def limited_store(request: pytest.FixtureRequest, clock: SetClock) -> AsyncIterator[Store]:
    """Remembers two polls."""
    store: Store = MemoryStore(clock=clock, first_polls=FirstPollLimits(2, DAY))
    if request.param == "postgres":
        dsn = request.getfixturevalue("database_dsn")
        store = PostgresStore(dsn, clock=clock, config=Config(first_polls_max=2))
    await store.open()
    yield store
    await store.close()


async def test_only_so_many_are_remembered(limited_store: Store, clock: SetClock) -> None:
    """The limit is two."""
    for queue in ("a", "b", "c"):
        await polled(limited_store, queue)
    clock.advance(1)
    for queue in ("a", "b", "c"):
        await push_n(limited_store, queue)
    clock.advance(1)
    assert [await polled(limited_store, queue) for queue in ("a", "b", "c")] == [[1], [1], []]


async def test_old_ones_make_room(limited_store: Store, clock: SetClock) -> None:
    for queue in ("a", "b"):
        await polled(limited_store, queue)
    clock.advance(DAY + 1)
    await polled(limited_store, "c")
    clock.advance(1)
    await push_n(limited_store, "c")
    clock.advance(1)
    assert await polled(limited_store, "c") == [1]
