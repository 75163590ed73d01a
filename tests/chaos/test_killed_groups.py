"""kill -9 of a process between two slices of a group that it makes or deletes: another one finishes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from lockstep.core.policy import GroupMode
from lockstep.core.records import Subscription, SubscriptionMode
from lockstep.storage.postgres.store import PostgresStore
from support import group_slices
from support.builders import batch, finish_groups, pop_all
from support.databases import Databases
from support.embedded_tools import query, wait_until

PARTITIONS = 2_000
CURSORS = (
    "select count(*) from lockstep.cursor c join lockstep.consumer_group g on g.id = c.group_id where g.name = 'g'"
)
ALL_CURSORS = "select count(*) from lockstep.cursor c where c.group_id > 0"


@pytest.fixture
def dsn(databases: Databases) -> str:
    return databases.clone()


@pytest_asyncio.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(dsn)
    await store.open()
    await push(store, 1)
    yield store
    await store.close()


async def push(store: PostgresStore, number: int) -> None:
    for first in range(0, PARTITIONS, 500):
        await store.push([batch("q", partition=f"p{n}", start=number) for n in range(first, first + 500)])


async def everything(store: PostgresStore) -> dict[str, list[int]]:
    """All that comes for the group, by partition, in the order in which it comes."""
    found: dict[str, list[int]] = {}
    for message in await pop_all(store, "q", group="g"):
        found.setdefault(message.partition, []).append(message.json()["n"])
    return found


@contextmanager
def killed(*arguments: str) -> Iterator[None]:
    """A process that is at work, and is killed at the end of the block."""
    process = subprocess.Popen([sys.executable, str(Path(group_slices.__file__)), *arguments])
    try:
        yield
        assert process.poll() is None, "it had ended before it was killed"
    finally:
        process.kill()
        process.wait()


def count(dsn: str, statement: str) -> int:
    [(found,)] = query(dsn, statement)
    return int(found)


@pytest.mark.parametrize("group_mode", ["ordered", "shared"])
@pytest.mark.parametrize(("mode", "expected"), [("all", [1, 2]), ("new", [2])])
async def test_group_whose_maker_is_killed_is_made_by_another(
    store: PostgresStore, dsn: str, mode: SubscriptionMode, expected: list[int], group_mode: GroupMode
) -> None:
    with killed(dsn, "make", mode, group_mode):
        wait_until(lambda: count(dsn, CURSORS) > PARTITIONS // 10)
    assert 0 < count(dsn, CURSORS) < PARTITIONS
    await push(store, 2)
    await finish_groups(store)
    assert count(dsn, CURSORS) == PARTITIONS
    assert await everything(store) == {f"p{n}": expected for n in range(PARTITIONS)}


async def test_group_whose_deleter_is_killed_is_gone_and_its_cursors_go(store: PostgresStore, dsn: str) -> None:
    await store.subscribe("q", "g", Subscription())
    await finish_groups(store)
    assert await everything(store) == {f"p{n}": [1] for n in range(PARTITIONS)}
    with killed(dsn, "delete"):
        wait_until(lambda: count(dsn, ALL_CURSORS) < PARTITIONS)
    assert 0 < count(dsn, ALL_CURSORS) < PARTITIONS
    await store.subscribe("q", "g", Subscription())
    await push(store, 2)
    await finish_groups(store)
    assert count(dsn, ALL_CURSORS) == count(dsn, CURSORS) == PARTITIONS
    assert await everything(store) == {f"p{n}": [1, 2] for n in range(PARTITIONS)}
