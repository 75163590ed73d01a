"""Several who drain the same spool, and calls that are cut off."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from lockstep.core.messages import Batch
from lockstep.core.records import PopRequest
from lockstep.errors import Unavailable
from lockstep.storage.postgres.store import PostgresStore
from support.until import until

QUEUE = "orders"
LOCK_WAITERS = "select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


def part(number: int) -> Batch:
    return Batch.of(QUEUE, [b"%d" % number], partition=f"p{number % 3}")


async def opened(stack: AsyncExitStack, dsn: str) -> PostgresStore:
    store = PostgresStore(dsn)
    await store.open()
    stack.push_async_callback(store.close)
    return store


async def stored(store: PostgresStore) -> list[int]:
    found: list[int] = []
    for number in range(3):
        popped = await store.pop([PopRequest(queue=QUEUE, partition=f"p{number}", batch=1000)])
        numbers = [int(payload) for payload in popped[0].payloads()]
        assert numbers == sorted(numbers)
        found += numbers
    return sorted(found)


async def drain_all(store: PostgresStore, spool: UUID, parts: int) -> int:
    """One who drains from the beginning, and goes on where the store says; returns how many parts it pushed."""
    place = pushed = 0
    while place < parts:
        drained = await store.drain(spool, [part(place)], start=place, end=place + 1)
        pushed += drained.pushed is not None
        place = drained.place
    return pushed


async def test_each_part_is_pushed_by_one_of_those_who_drain(database_dsn: str) -> None:
    spool = uuid4()
    async with AsyncExitStack() as stack:
        stores = [await opened(stack, database_dsn) for _ in range(4)]
        pushed = await asyncio.gather(*[drain_all(store, spool, 60) for store in stores])
        assert sum(pushed) == 60
        assert await stored(stores[0]) == list(range(60))


async def test_drain_that_is_cut_off_before_its_commit_is_not_remembered(database_dsn: str) -> None:
    spool = uuid4()
    async with AsyncExitStack() as stack:
        store = await opened(stack, database_dsn)
        await store.push([Batch.of(QUEUE, [b"0"], partition="p1")])
        with psycopg.connect(database_dsn) as lock:
            lock.execute("select 1 from lockstep.partition for no key update")
            draining = asyncio.create_task(store.drain(spool, [part(1)], start=0, end=1))
            await waiting(lock)
            with psycopg.connect(database_dsn, autocommit=True) as other:
                other.execute(f"select pg_terminate_backend(pid) from ({LOCK_WAITERS}) waiting")
            with pytest.raises(Unavailable) as caught:
                await draining
            assert caught.value.details == {"unreachable": True, "maybe_applied": True}
        drained = await store.drain(spool, [part(1)], start=0, end=1)
        assert drained.pushed is not None
        assert await stored(store) == [0, 1]


async def waiting(connection: psycopg.Connection[Any]) -> None:
    """Until somebody waits for a lock."""
    await until(lambda: connection.execute(LOCK_WAITERS).fetchall())


async def test_change_of_the_mode_is_told_to_others(database_dsn: str) -> None:
    async with AsyncExitStack() as stack:
        here, there = [await opened(stack, database_dsn) for _ in range(2)]
        changed = asyncio.Event()
        there.watch(there=lambda _: None, changed=changed.set)
        await there.listen(lambda *_: None, waiting=lambda: False)
        changed.clear()  # it is also told when it begins to listen
        await here.set_maintenance_mode(push=True)
        async with asyncio.timeout(30):
            await changed.wait()
        assert (await there.system()).push_maintenance
