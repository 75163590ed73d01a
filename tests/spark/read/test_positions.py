"""Published positions: what they hold back from retention, what is said about losses, and the lag that they show."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from lockstep.core.maintenance import PruneKind
from lockstep.errors import DataLost, SparkStreamNotFound
from lockstep.spark.read.offsets import Offset
from lockstep.spark.read.stream import PUBLISH_SECONDS
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, configure, pop, push_n
from support.spark_reads import Query, numbers_of, read_tasks


@pytest_asyncio.fixture
async def store(database_dsn: str) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(database_dsn)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def queries(database_dsn: str) -> Iterator[Callable[..., Query]]:
    made: list[Query] = []

    def make(**options: Any) -> Query:
        made.append(Query(database_dsn, queue="orders", **options))
        return made[-1]

    yield make
    for query in made:
        query.close()


Queries = Callable[..., Query]


def execute(dsn: str, statement: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else None


def age(dsn: str) -> None:
    """All that is stored is an hour old."""
    execute(dsn, "update lockstep.segment set created_at = created_at - interval '1 hour'")


async def prune(store: PostgresStore, kind: PruneKind = "retention") -> int:
    removed, after = 0, None
    while True:
        pruned = await store.prune(kind, after=after, limit=10_000)
        removed, after = removed + pruned.messages, pruned.next
        if after is None:
            return removed


async def step(query: Query, **given: Any) -> list[int] | None:
    rows = await asyncio.to_thread(query.step, **given)
    return None if rows is None else numbers_of(rows)


async def test_retention_leaves_what_a_checkpoint_may_ask_for(
    store: PostgresStore, database_dsn: str, queries: Queries
) -> None:
    await configure(store, "orders", retention_enabled=True, retention_seconds=60)
    await push_n(store, "orders", 3)
    query = queries()
    assert await step(query, commit=False) == [1, 2, 3]
    await push_n(store, "orders", 2, start=4)
    age(database_dsn)
    assert await prune(store) == 0
    query.restart()
    assert numbers_of(query.replay(_initial(query), query.checkpoint[0])) == [1, 2, 3]
    assert await step(query) == [4, 5]
    assert await prune(store) == 5


def _initial(query: Query) -> dict[str, Any]:
    return query.stream.initial().as_json()


async def test_commit_lets_retention_take_what_was_read(
    store: PostgresStore, database_dsn: str, queries: Queries
) -> None:
    await configure(store, "orders", retention_enabled=True, completed_retention_seconds=60)
    await push_n(store, "orders", 3)
    await pop(store, "orders", batch=10, auto_ack=True)
    query = queries()
    assert await step(query) == [1, 2, 3]
    await push_n(store, "orders", 2, start=4)
    await pop(store, "orders", batch=10, auto_ack=True)
    age(database_dsn)
    assert await prune(store, "completed_retention") == 3
    assert await step(query) == [4, 5]


async def test_retention_waits_for_the_slowest_stream(
    store: PostgresStore, database_dsn: str, queries: Queries
) -> None:
    await configure(store, "orders", retention_enabled=True, retention_seconds=60)
    await push_n(store, "orders", 1)
    await push_n(store, "orders", 1, start=2)
    fast, slow = queries(), queries(maxMessagesPerTrigger=1)
    assert await step(fast) == [1, 2]
    assert await step(slow) == [1]
    age(database_dsn)
    assert await prune(store) == 1
    assert await step(slow) == [2]
    assert await prune(store) == 1


async def test_stream_that_began_on_an_empty_queue_holds_what_comes(
    store: PostgresStore, database_dsn: str, queries: Queries
) -> None:
    await configure(store, "orders", retention_enabled=True, retention_seconds=60)
    query = queries()
    assert await step(query) == []
    execute(database_dsn, "update lockstep.spark_position set held_until = clock_timestamp()")
    query.restart()
    query.now += 60
    assert await step(query) is None  # it says that it is still there
    await push_n(store, "orders", 2)
    age(database_dsn)
    assert await prune(store) == 0
    assert await step(query) == [1, 2]


async def test_stream_that_began_on_an_empty_queue_learns_of_losses(store: PostgresStore, queries: Queries) -> None:
    await configure(store, "orders")
    query = queries()
    assert await step(query) == []
    await push_n(store, "orders", 2)
    await store.clear("orders")
    query.restart()
    with pytest.raises(DataLost, match="2 messages of orders were removed"):
        await step(query)


@pytest.mark.parametrize(
    "narrowed",
    [{"partitions": "mine"}, {"traceId": "0192f5a4-0000-7000-8000-000000000001"}],
    ids=["partition", "trace"],
)
async def test_messages_of_others_are_no_lag_and_not_held(
    store: PostgresStore, database_dsn: str, queries: Queries, narrowed: dict[str, str]
) -> None:
    await configure(store, "orders", retention_enabled=True, retention_seconds=60)
    query = queries(**narrowed)
    assert await step(query) == []
    await push_n(store, "orders", 3)
    age(database_dsn)
    assert await step(query) is None
    assert await prune(store) == 0
    query.now += PUBLISH_SECONDS
    assert await step(query) == []
    assert [stream.lag for stream in await store.spark_streams()] == [0]
    assert await prune(store) == 3
    assert await step(query) is None


async def test_run_that_ends_by_itself_passes_messages_of_others(store: PostgresStore, queries: Queries) -> None:
    await push_n(store, "orders", 3)
    query = queries(partitions="mine")
    query.stream.stop_at_now()
    assert await asyncio.to_thread(query.drain) == []
    assert len(query.checkpoint) == 1


async def test_stream_that_has_read_nothing_holds_nothing(
    store: PostgresStore, database_dsn: str, queries: Queries
) -> None:
    await configure(store, "orders", retention_enabled=True, retention_seconds=60)
    await push_n(store, "orders", 1)
    query = queries()
    await asyncio.to_thread(query.latest)
    age(database_dsn)
    assert await prune(store) == 1


async def test_abandoned_stream_holds_nothing(store: PostgresStore, database_dsn: str, queries: Queries) -> None:
    await configure(store, "orders", retention_enabled=True, retention_seconds=60)
    await push_n(store, "orders", 1)
    query = queries()
    await step(query)
    await push_n(store, "orders", 1, start=2)
    age(database_dsn)
    assert await prune(store) == 1
    execute(database_dsn, "update lockstep.spark_position set held_until = clock_timestamp()")
    assert await prune(store) == 1
    # It comes back, and is told what it missed.
    with pytest.raises(DataLost, match="1 messages of orders were removed"):
        await step(query)
    await store.prune_history(3600, limit=100)
    assert await store.spark_streams() == []
    assert execute(database_dsn, "select * from lockstep.spark_removal") == []
    query.restart()
    with pytest.raises(DataLost, match="position of the stream was forgotten"):
        await step(query)


async def test_position_is_held_for_the_time_that_the_setting_says(
    store: PostgresStore, queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_SPARK_POSITION_SECONDS_MAX", "3600")
    await push_n(store, "orders", 1)
    await step(queries())
    [info] = await store.spark_streams()
    assert (info.held_until - info.updated_at).total_seconds() == 3600


@pytest.mark.parametrize("partition", [None, "Default"])
async def test_clear_of_what_was_not_read_is_a_loss(
    store: PostgresStore, queries: Queries, partition: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    await push_n(store, "orders", 1)
    careful, careless = queries(), queries(failOnDataLoss="false")
    for query in (careful, careless):
        assert await step(query) == [1]
    await push_n(store, "orders", 2, start=2)
    await push_n(store, "orders", 3, start=4)
    assert await store.clear("orders", partition=partition) == 6
    with pytest.raises(DataLost, match=r"5 messages of orders were removed.*failOnDataLoss=false"):
        await step(careful)
    with caplog.at_level(logging.WARNING):
        assert await step(careless) is None
        assert await step(careless) is None
    assert [record.message for record in caplog.records] == [
        "5 messages of orders were removed before the stream had read them"
    ]
    await push_n(store, "orders", 1, start=7)
    assert await step(careless) == [7]


async def test_clear_of_what_was_read_is_none(store: PostgresStore, database_dsn: str, queries: Queries) -> None:
    """After a run to the end Spark commits no last batch, and yet it is done."""
    await push_n(store, "orders", 3)
    query = queries()
    assert await step(query, commit=False) == [1, 2, 3]
    await store.clear("orders")
    query.restart()
    assert await step(query) is None
    await push_n(store, "orders", 1, start=4)
    assert await step(query) == [4]
    assert execute(database_dsn, "select * from lockstep.spark_removal") == []


async def test_removal_from_before_the_stream_is_none(store: PostgresStore, queries: Queries) -> None:
    await push_n(store, "orders", 1)
    first = queries()
    assert await step(first) == [1]
    await push_n(store, "orders", 2, start=2)
    await store.clear("orders")
    await push_n(store, "orders", 1, start=4)
    assert await step(queries()) == [4]


async def test_eviction_of_what_was_not_read_is_a_loss(
    store: PostgresStore, database_dsn: str, queries: Queries
) -> None:
    await configure(store, "orders", max_wait_seconds=60)
    await pop(store, "orders")
    await push_n(store, "orders", 1)
    query = queries()
    assert await step(query) == [1]
    await push_n(store, "orders", 2, start=2)
    age(database_dsn)
    assert await prune(store, "eviction") == 3
    with pytest.raises(DataLost, match="2 messages of orders"):
        await step(query)


async def test_loss_in_a_partition_that_is_not_read_is_none(store: PostgresStore, queries: Queries) -> None:
    await push_n(store, "orders", 1, partition="mine")
    query = queries(partitions="mine")
    assert await step(query) == [1]
    await push_n(store, "orders", 1, partition="other", start=2)
    await push_n(store, "orders", 1, partition="mine", start=3)
    await store.clear("orders", partition="other")
    assert await step(query) == [3]


@pytest.mark.parametrize("fail", [True, False])
async def test_loss_between_plan_and_read(
    store: PostgresStore, queries: Queries, fail: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await push_n(store, "orders", 1)
    query = queries(failOnDataLoss=str(fail))
    assert await step(query) == [1]
    await store.push([batch("orders", 2, partition="a"), batch("orders", 3, partition="b")])
    await push_n(store, "orders", 4, partition="a", start=10)
    start, end = query.start(), await asyncio.to_thread(query.latest)
    assert end is not None
    tasks = await asyncio.to_thread(query.stream.plan, Offset.of(start), Offset.of(end))
    await store.clear("orders", partition="a")
    if fail:
        with pytest.raises(DataLost, match="6 messages of orders"):
            await asyncio.to_thread(read_tasks, query.options, tasks)
        return
    with caplog.at_level(logging.WARNING):
        rows = await asyncio.to_thread(read_tasks, query.options, tasks)
    assert [row["partition"] for row in rows] == ["b"] * 3
    assert [record.message for record in caplog.records] == [
        "6 messages of orders were removed before the stream had read them"
    ]


async def test_message_that_an_operator_removed_is_none(store: PostgresStore, queries: Queries) -> None:
    await push_n(store, "orders", 1)
    query = queries()
    assert await step(query) == [1]
    [_, receipt] = await push_n(store, "orders", 2, start=2)
    partition = await store.partition("orders", "Default")
    await store.remove_message(partition.id, receipt.message_id)
    assert await step(query) == [2]


async def test_lag_is_what_is_still_to_be_read(store: PostgresStore, queries: Queries) -> None:
    await push_n(store, "orders", 3)
    query = queries(streamName="nightly")
    assert await store.spark_streams() == []
    await step(query)
    [info] = await store.spark_streams(queue="orders")
    assert (info.name, info.queue, info.kind, info.lag, info.oldest_at) == ("nightly", "orders", "spark", 0, None)
    await push_n(store, "orders", 2, start=4)
    await push_n(store, "returns", 7)
    [info] = await store.spark_streams()
    assert info.lag == 2
    assert info.oldest_at is not None
    await step(query, commit=False)
    assert await step(query) is None
    [info] = await store.spark_streams()
    assert info.lag == 0


async def test_two_queries_of_one_frame_are_two_streams(store: PostgresStore, queries: Queries) -> None:
    await push_n(store, "orders", 1)
    for query in (queries(), queries()):
        await step(query)
        query.restart()
        await step(query)
    assert len(await store.spark_streams()) == 2


async def test_forgotten_stream(store: PostgresStore, queries: Queries) -> None:
    await push_n(store, "orders", 1)
    careful, careless = queries(), queries(failOnDataLoss="false")
    for query in (careful, careless):
        await step(query)
    for info in await store.spark_streams():
        assert await store.forget_spark_stream(info.id) == 1
    with pytest.raises(SparkStreamNotFound):
        await store.forget_spark_stream("nobody")
    await push_n(store, "orders", 1, start=2)
    for query in (careful, careless):
        query.restart()
    with pytest.raises(DataLost, match="forgotten"):
        await step(careful)
    assert await step(careless) == [2]
    assert len(await store.spark_streams()) == 1


async def test_positions_go_with_their_queue(store: PostgresStore, database_dsn: str, queries: Queries) -> None:
    await push_n(store, "orders", 1)
    query = queries()
    await step(query)
    await push_n(store, "orders", 1, start=2)
    await store.clear("orders")
    await store.delete_queue("orders")
    for table in ("spark_position", "spark_removal"):
        assert execute(database_dsn, f"select * from lockstep.{table}") == []
