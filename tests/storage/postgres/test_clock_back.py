"""The walk that follows a clock which was set back: slices, what somebody holds, and servers that die on the way."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio

from lockstep.config import Config
from lockstep.core.maintenance import Moved
from lockstep.engine.maintenance.clock import Clock
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, numbers, pop, pop_all
from support.clock import SetClock

HOUR = 3600
PARTITIONS = 7
_HELD = """
    select 1 from lockstep.cursor c join lockstep.partition p on p.id = c.partition_id where p.name = 'p3'
    for no key update of c
"""


@pytest_asyncio.fixture
async def store(dsn: str, clock: SetClock) -> AsyncIterator[PostgresStore]:
    """What was due by a clock that was set back by an hour, after the duty had looked."""
    made = PostgresStore(dsn, config=Config(slice_partitions_max=2), clock=clock)
    await made.open()
    await made.push([batch("q", 1, partition=f"p{n}") for n in range(PARTITIONS)])
    assert len(await pop_all(made, "q", group="g")) == PARTITIONS
    await made.push([batch("q", 1, partition=f"p{n}", start=2) for n in range(PARTITIONS)])
    await made.follow_clock()
    clock.set_back(HOUR)
    yield made
    assert await made.verify() == []
    await made.close()


async def _ready(store: PostgresStore) -> int:
    return len(await pop_all(store, "q", group="g"))


async def test_walk_goes_in_slices(store: PostgresStore) -> None:
    done: list[Moved] = [await store.follow_clock()]
    assert (done[0].waiting, await _ready(store)) == (2, 2)
    while done[-1].next is not None:
        done.append(await store.follow_clock(after=done[-1].next))
    assert [batch.waiting for batch in done] == [2, 2, 2, 1]
    assert await _ready(store) == PARTITIONS - 2
    assert await store.follow_clock() == Moved()


async def test_walk_that_was_cut_short_is_begun_anew(store: PostgresStore, clock: SetClock) -> None:
    assert (await store.follow_clock()).next is not None
    clock.advance(5)
    assert (await Clock(store, Config()).run_once()).effect == {"moved": PARTITIONS - 2}
    assert await _ready(store) == PARTITIONS


async def test_what_somebody_holds_is_moved_by_the_next_walk(dsn: str, store: PostgresStore) -> None:
    duty = Clock(store, Config())
    async with await psycopg.AsyncConnection.connect(dsn) as holder:
        await holder.execute(_HELD)
        assert (await duty.run_once()).effect == {"moved": PARTITIONS - 1}
        assert await _ready(store) == PARTITIONS - 1
        assert (await duty.run_once()).effect == {"moved": 0}
    assert (await duty.run_once()).effect == {"moved": 1}
    assert await _ready(store) == 1
    assert await store.follow_clock() == Moved()


async def test_clock_that_goes_back_during_the_walk_begins_it_anew(store: PostgresStore, clock: SetClock) -> None:
    place = (await store.follow_clock()).next
    clock.set_back(HOUR)
    assert (await store.follow_clock(after=place)).waiting == 2
    await Clock(store, Config()).run_once()
    assert await _ready(store) == PARTITIONS


async def test_group_that_lacks_cursors_gets_them_due(dsn: str, clock: SetClock) -> None:
    store = PostgresStore(dsn, config=Config(slice_partitions_max=2, slices_seconds_max=0), clock=clock)
    await store.open()
    await store.push([batch("other", 1, partition=f"p{n}") for n in range(PARTITIONS)])
    assert numbers(await pop(store, "other", group="late")) == [1]
    await store.follow_clock()
    clock.set_back(HOUR)
    await Clock(store, Config()).run_once()
    found = [one for _ in range(PARTITIONS) for one in numbers(await pop(store, "other", group="late"))]
    assert found == [1] * (PARTITIONS - 1)
    await store.close()


async def test_duty_says_so_in_the_log(store: PostgresStore, caplog: pytest.LogCaptureFixture) -> None:
    duty = Clock(store, Config())
    with caplog.at_level(logging.WARNING):
        await duty.run_once()
        await duty.run_once()
    assert [record.getMessage() for record in caplog.records] == ["clock_was_set_back"]
