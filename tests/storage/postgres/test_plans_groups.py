"""What groups cost among many partitions, while statistics know of one: a slice reads what it makes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
import pytest_asyncio

from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import MessageFilter, Position, Subscription, SubscriptionMode
from support.builders import batch, numbers, pop, pop_all, push_n
from support.clock import SetClock
from support.sessions import Actor, Stage

PARTITIONS = 6_000
SLICE = 50
READ_MAX = SLICE * 20
"""Rows that one slice may read in all tables; a walk through all partitions would read 6,000 in one."""

_READ = """
select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint
from pg_stat_xact_user_tables where schemaname = 'lockstep'
"""
_NO_AUTOVACUUM = """
do $$
declare _table regclass;
begin
    for _table in select c.oid from pg_class c where c.relnamespace = 'lockstep'::regnamespace and c.relkind = 'r' loop
        execute format('alter table %s set (autovacuum_enabled = false)', _table);
    end loop;
end $$
"""


@pytest.fixture
def dsn(database_dsn: str) -> str:
    return database_dsn


@pytest_asyncio.fixture
async def actor(dsn: str, clock: SetClock) -> AsyncIterator[Actor]:
    """Its plans are made, and its tables analyzed, while there is one partition; then there are many."""
    async with Stage(dsn, clock=clock) as stage:
        actor = await stage.actor()
        store = actor.store
        await actor.connection.execute(_NO_AUTOVACUUM)
        store.slice_partitions_max = SLICE
        store.slices_seconds_max = 0
        await push_n(store, "q")
        for group in ("g", QUEUE_MODE):
            assert len(await pop_all(store, "q", group=group)) == 1
            await store.seek("q", group, Position("start"))
            await store.delete_group(group, queue="q")
        while (await store.prune_groups()).next is not None:
            pass
        await actor.connection.execute("analyze")
        for first in range(0, PARTITIONS, 1_000):
            await store.push([batch("q", partition=f"p{n}", start=n) for n in range(first, first + 1_000)])
        clock.advance(10)
        yield actor


async def rows_read(actor: Actor, call: Awaitable[Any]) -> int:
    await actor.begin()
    before = (await actor.connection.fetch(_READ))[0][0]
    await call
    read: int = (await actor.connection.fetch(_READ))[0][0] - before
    await actor.commit()
    return read


@pytest.mark.parametrize("mode", ["all", "new", "from"])
async def test_first_pop_reads_a_slice(actor: Actor, clock: SetClock, mode: SubscriptionMode) -> None:
    request = Subscription(mode, clock.now if mode == "from" else None)
    await push_n(actor.store, "q", partition="p77", start=-1)
    read = await rows_read(actor, pop(actor.store, "q", group="g", batch=10, partitions=10, subscription=request))
    assert read < READ_MAX
    await push_n(actor.store, "q", partition="p4000", start=-2)
    found = numbers(await pop(actor.store, "q", group="g", partition="p4000", batch=10))
    assert found == ([4000, -2] if mode == "all" else [-2])


async def test_slices_read_what_they_make(actor: Actor) -> None:
    await actor.store.subscribe("q", "g", Subscription())
    for _ in range(5):
        assert await rows_read(actor, actor.store.prune_groups()) < READ_MAX


async def test_push_to_a_partition_without_a_cursor_reads_that_partition(actor: Actor) -> None:
    await actor.store.subscribe("q", "g", Subscription("new"))
    assert await rows_read(actor, push_n(actor.store, "q", partition="p4000", start=-1)) < 120


async def test_seek_and_delete_read_a_slice(actor: Actor) -> None:
    """Beside the partitions, which they count."""
    store = actor.store
    await store.subscribe("q", "g", Subscription())
    assert await rows_read(actor, store.seek("q", "g", Position("end"))) < PARTITIONS + READ_MAX
    assert await rows_read(actor, store.delete_group("g", queue="q")) < PARTITIONS + READ_MAX
    for _ in range(5):
        assert await rows_read(actor, store.prune_groups()) < READ_MAX


async def test_status_of_messages_reads_their_partitions(actor: Actor) -> None:
    await actor.store.subscribe("q", "g", Subscription())
    page = MessageFilter(queue="q", partition="p3000")
    assert await rows_read(actor, actor.store.messages(page)) < 100
