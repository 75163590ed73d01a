"""Spark streams on a database that lost its last transactions: a replica took over, or a backup was restored. The new
primary gives the same transaction ids out again, and no stream may take what it writes for read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from lockstep import Batch, open_engine
from lockstep.errors import CheckpointAhead, CheckpointMismatch, Unavailable
from lockstep.spark.lease.lease_stream import LeaseStream
from lockstep.spark.read.batch import plan_batch
from lockstep.spark.read.offsets import Offset
from lockstep.spark.read.positions import MARKS_KEPT
from support.databases import scratch_directory
from support.replication import Pair
from support.spark_reads import Query, numbers_of, read_options, read_tasks


@pytest.fixture
def pair() -> Iterator[Pair]:
    with scratch_directory() as folder:
        pair = Pair(folder)
        yield pair
        pair.close()


def push(dsn: str, first: int, last: int) -> None:
    """A message for each number, in a transaction each."""

    async def run() -> None:
        async with open_engine(dsn, pool_connections_max=1) as engine:
            for n in range(first, last + 1):
                await engine.push([Batch.of("orders", [b'{"n":%d}' % n], partition=f"p{n % 3}")])

    asyncio.run(run())


def accept(dsn: str, stream: str) -> None:
    async def run() -> None:
        async with open_engine(dsn, pool_connections_max=1) as engine:
            await engine.accept_spark_stream(stream)

    asyncio.run(run())


def query_on(pair: Pair, **options: object) -> Query:
    return Query(pair.dsn, queue="orders", **options)


def lose(pair: Pair, query: Query) -> None:
    """The stream has read 1 to 5, which all have, and 6 to 15, which are lost; 101 to 160 come instead."""
    push(pair.dsn, 1, 5)
    assert numbers_of(query.drain()) == [1, 2, 3, 4, 5]
    pair.cut()
    push(pair.dsn, 6, 15)
    assert numbers_of(query.drain()) == list(range(6, 16))
    pair.fail_over()
    push(pair.dsn, 101, 160)


@pytest.mark.parametrize("restarts", [False, True])
def test_stream_that_has_read_what_is_lost_stops_and_goes_on_when_allowed(pair: Pair, *, restarts: bool) -> None:
    query = query_on(pair)
    lose(pair, query)
    if restarts:
        query.restart()
    with pytest.raises(CheckpointAhead, match="lockstep streams accept") as caught:
        query.drain()
    stream = caught.value.details["stream"]
    assert stream == Offset.of(query.start()).stream
    accept(pair.dsn, stream)
    query.restart()
    assert sorted(numbers_of(query.drain())) == list(range(101, 161))
    query.restart()
    push(pair.dsn, 161, 163)
    assert numbers_of(query.drain()) == [161, 162, 163]
    query.close()


def test_stream_goes_on_by_itself_with_the_option(pair: Pair) -> None:
    query = query_on(pair, onFailover="continue", maxMessagesPerTrigger=7)
    lose(pair, query)
    assert sorted(numbers_of(query.drain())) == list(range(101, 161))
    query.close()


def test_batch_that_was_not_committed_before_the_failover_is_read_anew(pair: Pair) -> None:
    """Its end is in Spark's log, and nothing of it is known. The next batch has what there is of it."""
    query = query_on(pair)
    push(pair.dsn, 1, 5)
    query.step()
    pair.cut()
    push(pair.dsn, 6, 9)
    start, end = query.start(), query.latest()
    assert end is not None
    pair.fail_over()
    push(pair.dsn, 101, 140)
    query.restart()
    with pytest.raises(CheckpointAhead):
        query.replay(start, end)
    query.stream.close()
    query.options = read_options(pair.dsn, queue="orders", onFailover="continue")
    query.restart()
    assert query.replay(start, end) == []
    query.checkpoint.append(end)
    query.stream.commit(Offset.of(end))
    assert sorted(numbers_of(query.drain())) == list(range(101, 141))
    query.close()


def test_permission_is_for_one_failover(pair: Pair) -> None:
    query = query_on(pair)
    lose(pair, query)
    ahead = list(query.checkpoint)
    accept(pair.dsn, Offset.of(query.start()).stream)
    query.drain()
    query.checkpoint = ahead
    query.restart()
    with pytest.raises(CheckpointAhead):
        query.drain()
    query.close()


def test_stream_that_is_not_ahead_goes_on(pair: Pair) -> None:
    """The standby had all that the stream has read; what it had not is lost."""
    query = query_on(pair)
    push(pair.dsn, 1, 5)
    query.drain()
    pair.cut()
    push(pair.dsn, 6, 9)
    pair.fail_over()
    push(pair.dsn, 101, 120)
    assert sorted(numbers_of(query.drain())) == list(range(101, 121))
    query.close()


def test_synchronous_standby_takes_over_without_anybody_noticing() -> None:
    with scratch_directory() as folder:
        pair = Pair(folder, synchronous=True)
        query = query_on(pair)
        push(pair.dsn, 1, 9)
        query.drain()
        pair.fail_over()
        push(pair.dsn, 10, 20)
        assert sorted(numbers_of(query.drain())) == list(range(10, 21))
        query.close()
        pair.close()


def test_backup_on_the_same_timeline_is_noticed(pair: Pair) -> None:
    query = Query(pair.primary.dsn, queue="orders")
    push(pair.primary.dsn, 1, 5)
    query.drain()
    backup = pair.back_up()
    push(pair.primary.dsn, 6, 9)
    query.drain()
    pair.restore(backup)
    push(pair.primary.dsn, 101, 140)
    with pytest.raises(CheckpointAhead):
        query.drain()
    accept(pair.primary.dsn, Offset.of(query.start()).stream)
    assert sorted(numbers_of(query.drain())) == list(range(101, 141))
    query.close()


def test_stream_of_which_all_is_lost_needs_a_new_checkpoint(pair: Pair) -> None:
    push(pair.dsn, 1, 5)
    pair.cut()
    query = query_on(pair, onFailover="continue")
    query.drain()
    pair.fail_over()
    with pytest.raises(CheckpointAhead, match="new checkpoint"):
        query.drain()
    query.close()


def test_stream_that_begins_at_the_end_has_a_mark_before_its_first_batch(pair: Pair) -> None:
    push(pair.dsn, 1, 5)
    pair.cut()
    query = query_on(pair, startingPosition="latest")
    query.checkpoint = [query.start()]
    push(pair.dsn, 6, 20)
    pair.fail_over()
    push(pair.dsn, 101, 103)
    with pytest.raises(CheckpointAhead):
        query.drain()
    query.close()


def test_tasks_that_reach_another_server_than_the_plan_was_made_on_say_so(pair: Pair) -> None:
    push(pair.dsn, 1, 5)
    pair.cut()
    push(pair.dsn, 6, 9)
    options = read_options(pair.dsn, queue="orders")
    frame = plan_batch(options)
    query = query_on(pair)
    end = query.latest()
    assert end is not None
    planned = query.stream.plan(Offset.of(query.start()), Offset.of(end))
    leasing = LeaseStream(read_options(pair.dsn, queue="orders", mode="lease", group="g", streamName="s"))
    start = leasing.initial()
    leased = leasing.plan(start.as_json(), leasing.latest(start.as_json(), messages_max=None).as_json())
    pair.fail_over()
    push(pair.dsn, 101, 120)
    with pytest.raises(Unavailable, match="Read again"):
        read_tasks(options, frame)
    with pytest.raises(CheckpointAhead):
        read_tasks(query.options, planned)
    with psycopg.connect(pair.primary.dsn) as connection, pytest.raises(Unavailable, match="Read again"):
        leased[0].witness.check(connection)
    leasing.close()
    query.close()


def test_lease_stream_looks_its_groups_up_again(pair: Pair) -> None:
    """Its group was created after the standby's last news, and its id is another group's now."""
    push(pair.dsn, 1, 5)
    pair.cut()
    stream = LeaseStream(read_options(pair.dsn, queue="orders", mode="lease", group="mine", streamName="s"))
    start = stream.initial()
    end = stream.latest(start.as_json(), messages_max=2)
    pair.fail_over()

    async def others() -> None:
        async with open_engine(pair.dsn, pool_connections_max=1) as engine:
            await engine.subscribe("orders", "theirs")

    asyncio.run(others())
    after = stream.latest(end.as_json(), messages_max=None)
    [tasks] = [stream.plan(end.as_json(), after.as_json())]
    assert sum(int(task.segments.messages.sum()) for task in tasks) == 5

    async def lags() -> dict[str, int]:
        async with open_engine(pair.dsn, pool_connections_max=1) as engine:
            return {one.name: one.leases for one in await engine.groups(queue="orders")}

    assert asyncio.run(lags()) == {"mine": 3, "theirs": 0}
    stream.close()


def test_checkpoint_from_long_ago_is_not_taken_for_one_that_is_ahead(database_dsn: str) -> None:
    push(database_dsn, 1, 2)
    query = Query(database_dsn, queue="orders", maxMessagesPerTrigger=1)
    query.step()
    first = query.checkpoint[-1]
    query.drain()
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        stream = Offset.of(first).stream
        for _ in range(2):
            connection.execute("select lockstep.mark_position(%s, gen_random_uuid(), %s)", (stream, 2))
    query.checkpoint = [first]
    query.restart()
    with pytest.raises(CheckpointMismatch, match=str(MARKS_KEPT)) as caught:
        query.step()
    assert not isinstance(caught.value, CheckpointAhead)
    query.close()


def test_checkpoint_of_an_older_version_has_no_marks_and_goes_on(database_dsn: str) -> None:
    push(database_dsn, 1, 2)
    query = Query(database_dsn, queue="orders")
    query.step()
    del query.checkpoint[-1]["mark"]
    query.restart()
    push(database_dsn, 3, 4)
    assert numbers_of(query.drain()) == [3, 4]
    assert "mark" in query.checkpoint[-1]
    query.close()
