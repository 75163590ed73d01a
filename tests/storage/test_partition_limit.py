"""Pushes that name ever new partitions do not fill a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest
import pytest_asyncio

from lockstep import push_within
from lockstep.config import Config
from lockstep.core.messages import Batch, NewSchedule
from lockstep.core.operations import NewOperation
from lockstep.core.records import Ack
from lockstep.errors import TooManyPartitions
from lockstep.storage.base import Store
from lockstep.storage.memory import MemoryStore
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, configure, pop, push_n
from support.clock import SetClock

LIMIT = 3


@pytest_asyncio.fixture(params=["memory", "postgres"])
async def limited(request: pytest.FixtureRequest, clock: SetClock) -> AsyncIterator[Store]:
    """A queue gets three partitions."""
    store: Store = MemoryStore(clock=clock, queue_partitions_max=LIMIT)
    if request.param == "postgres":
        dsn = request.getfixturevalue("database_dsn")
        store = PostgresStore(dsn, clock=clock, config=Config(queue_partitions_max=LIMIT))
    await store.open()
    yield store
    assert await store.verify() == []
    await store.close()


async def partitions(store: Store, queue: str) -> list[str]:
    return [info.name for info in await store.partitions(queue)]


async def fill(store: Store, queue: str = "q") -> None:
    for name in ("a", "b", "c"):
        await push_n(store, queue, 1, partition=name)


async def test_a_push_creates_no_more_than_the_limit(limited: Store) -> None:
    await fill(limited)
    for names in (["d"], ["a", "d"], ["d", "e"]):
        with pytest.raises(TooManyPartitions, match="exceed its limit of 3"):
            await limited.push([batch("q", 1, partition=name) for name in names])
    assert await partitions(limited, "q") == ["a", "b", "c"]
    # Those that are there go on, and so do other queues.
    await limited.push([batch("q", 1, partition=name) for name in "abc"])
    await push_n(limited, "other", 1, partition="d")
    assert len((await pop(limited, "q", batch=9, partitions=9)).payloads()) == 6


async def test_a_call_is_refused_whole(limited: Store) -> None:
    with pytest.raises(TooManyPartitions):
        await limited.push([batch("q", 1, partition=f"p{n}") for n in range(LIMIT + 1)])
    await limited.push([batch("q", 1, partition=f"p{n}") for n in range(LIMIT)])
    with pytest.raises(TooManyPartitions):
        await limited.push([batch("other", 1), batch("q", 1, partition="new")])
    assert [info.name for info in await limited.queues()] == ["q"]


async def test_operations_and_transactions_are_pushes(limited: Store) -> None:
    await fill(limited)
    with pytest.raises(TooManyPartitions):
        await limited.queue_operations([NewOperation([batch("q", 1, partition="d")])])
    with pytest.raises(TooManyPartitions):
        await limited.transaction([], [batch("q", 1, partition="d")])
    await limited.queue_operations([NewOperation([batch("q", 1, partition="a")])])
    assert await partitions(limited, "q") == ["a", "b", "c"]


async def test_scheduled_messages_wait_for_room(limited: Store, clock: SetClock) -> None:
    await fill(limited)
    columns = batch("q", 1, start=7).columns
    await limited.push([Batch("q", "d", columns, NewSchedule(deliver_at=clock() + timedelta(seconds=60)))])
    clock.advance(61)
    promoted = await limited.promote(limit=10)
    assert promoted.messages == 0
    assert "queue_partitions_max" in promoted.postponed["q"]
    assert await partitions(limited, "q") == ["a", "b", "c"]


async def test_what_dies_goes_to_the_dead_queue_all_the_same(limited: Store) -> None:
    """A death must not fail: the message would come again for ever."""
    await configure(limited, "dead")
    await configure(limited, "q", dead_queue="dead", retry_limit=0)
    await limited.push([batch("dead", 1, partition=name) for name in "ab"])
    await push_n(limited, "q", 1, partition="d")
    popped = await pop(limited, "q")
    await limited.ack([Ack(lease_id=popped.lease_id, status="failed")])
    assert await partitions(limited, "dead") == ["Default", "a", "b", "d"]


async def test_others_partitions_and_rolled_back_ones_are_counted_right(database_dsn: str) -> None:
    """Each process counts on from what it has seen."""
    config = Config(queue_partitions_max=5)
    one, other = PostgresStore(database_dsn, config=config), PostgresStore(database_dsn, config=config)
    await one.open()
    await push_n(one, "q", 1, partition="a")
    await push_n(other, "q", 1, partition="b")
    with pytest.raises(TooManyPartitions):
        await one.push([batch("q", 1, partition=f"x{n}") for n in range(9)])
    for name, store in {"c": one, "d": other, "e": one}.items():
        await push_n(store, "q", 1, partition=name)
    for store in (one, other):
        with pytest.raises(TooManyPartitions):
            await push_n(store, "q", 1, partition="f")
    assert await partitions(one, "q") == ["a", "b", "c", "d", "e"]
    await one.delete_queue("q")
    await push_n(other, "q", 1, partition="f")
    assert await partitions(one, "q") == ["f"]
    for store in (one, other):
        await store.close()


async def test_idle_partitions_make_room(database_dsn: str, clock: SetClock) -> None:
    store = PostgresStore(database_dsn, clock=clock, config=Config(queue_partitions_max=LIMIT))
    await store.open()
    await fill(store)
    await store.clear("q")
    for _ in range(2):
        await store.prune_partitions(1, limit=100)
        clock.advance(2)
    assert await partitions(store, "q") == []
    await fill(store)
    await store.close()


async def test_a_push_within_a_transaction_is_bound_as_well(database_dsn: str) -> None:
    store = PostgresStore(database_dsn)
    await fill(store)
    await store.close()
    with psycopg.connect(database_dsn) as connection, pytest.raises(TooManyPartitions):
        push_within(connection, [batch("q", 1, partition="d")], config=Config(queue_partitions_max=LIMIT))


async def test_what_was_counted_once_is_not_counted_again(database_dsn: str) -> None:
    """The figure of the last walk counts, too: what it has seen is not looked at."""
    store = PostgresStore(database_dsn, config=Config(queue_partitions_max=1_000))
    await store.push([batch("q", 1, partition=f"p{n}") for n in range(500)])
    await push_n(store, "q", 1, partition="more")
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        row = connection.execute("select id, (select max(id) from lockstep.partition) from lockstep.queue").fetchone()
        assert row is not None
        queue_id, upto = row
        # A figure that says more than there is: only what came after it is counted.
        counted = "select * from lockstep.room_for_partitions(%s, 1, 1000, %s, %s)"
        connection.execute(
            "insert into lockstep.figure (queue_id, group_id, walking, at, upto, partitions) "
            "values (%s, 0, false, now(), %s, 700)",
            [queue_id, upto - 1],
        )
        assert connection.execute(counted, [queue_id, None, None]).fetchone() == (701, upto)
        assert connection.execute(counted, [queue_id, 3, upto]).fetchone() == (3, upto)
        # What one's own count refuses is counted from the figure before it is refused.
        assert connection.execute(counted, [queue_id, 1_000, upto]).fetchone() == (701, upto)
    await store.close()
