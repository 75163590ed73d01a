"""Batch reads without Spark: what is planned, what is read, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import numpy as np
import psycopg
import pytest

from lockstep import connect
from lockstep.core.messages import Batch, Columns
from lockstep.errors import (
    CheckpointMismatch,
    Conflict,
    InvalidOption,
    PartitionNotFound,
    QueueNotFound,
    Unavailable,
)
from lockstep.spark.read import segment_reader as reading
from lockstep.spark.read import segments as planning
from lockstep.spark.read.batch import plan_batch
from lockstep.spark.read.segment_reader import ArrowReader
from lockstep.spark.read.segments import Segments
from support.builders import batch
from support.spark_reads import (
    Producer,
    Query,
    assert_in_order,
    numbers_of,
    read_batch,
    read_options,
    read_tasks,
    row_schema,
)


@pytest.fixture
def producer(database_dsn: str) -> Iterator[Producer]:
    made = Producer(database_dsn)
    yield made
    made.close()


def segments(*messages: int, size: int = 1000) -> Segments:
    count = len(messages)
    return Segments(
        np.arange(1, count + 1), np.array(messages, np.int32), np.full(count, size, np.int32), np.arange(1, count + 1)
    )


def test_tasks_are_ranges_of_about_the_same_work() -> None:
    parts = segments(*[10_000] * 10).tasks(4)
    assert [len(part) for part in parts] == [3, 2, 3, 2]
    assert np.concatenate([part.ids for part in parts]).tolist() == list(range(1, 11))


def test_few_messages_are_one_task_and_large_ones_are_more() -> None:
    assert len(segments(*[10] * 100).tasks(8)) == 1
    assert len(segments(*[10] * 100, size=1024**2).tasks(8)) == 8
    assert len(segments(1_000_000).tasks(8)) == 1
    assert segments().tasks(8) == []


def test_one_large_segment_among_small_ones() -> None:
    parts = segments(1_000_000, *[1] * 50).tasks(4)
    assert sum(len(part) for part in parts) == 51
    assert all(len(part) for part in parts)


def test_limits_take_whole_segments_and_always_one() -> None:
    some = segments(5, 5, 5)
    assert len(some.within(messages=11, size=None)) == 2
    assert len(some.within(messages=10, size=None)) == 2
    assert len(some.within(messages=1, size=None)) == 1
    assert len(some.within(messages=None, size=2_999)) == 2
    assert len(some.within(messages=None, size=None)) == 3


def test_seqs_bound_what_is_read_of_a_partition(database_dsn: str, producer: Producer) -> None:
    for number in range(6):
        producer.pushed(batch("orders", 5, partition=f"p{number % 3}"), batch("returns", 5, partition="p0"))

    def seqs(**options: str) -> dict[tuple[str, str], list[int]]:
        found: dict[tuple[str, str], list[int]] = {}
        for row in read_batch(database_dsn, **options):
            found.setdefault((row["queue"], row["partition"]), []).append(row["seq"])
        return {place: sorted(some) for place, some in found.items()}

    bounds = {"startingSeqs": '{"p0": 4, "p1": 9}', "endingSeqs": '{"p0": 7}'}
    assert seqs(queue="orders", **bounds) == {("orders", "p0"): [4, 5, 6], ("orders", "p1"): [9, 10]}
    assert seqs(queue="orders", endingSeqs='{"p2": 3, "nowhere": 9}') == {("orders", "p2"): [1, 2]}
    by_queue = '{"orders": {"p0": 10}, "returns": {"p0": 29}}'
    assert seqs(queue="orders,returns", startingSeqs=by_queue) == {
        ("orders", "p0"): [10],
        ("returns", "p0"): [29, 30],
    }
    assert seqs(queue="orders", startingSeqs='{"p0": 11}') == {}
    with pytest.raises(PartitionNotFound, match="a partition nowhere"):
        seqs(queue="orders", startingSeqs='{"nowhere": 1}')


def test_stream_of_seqs_takes_what_comes_after(database_dsn: str, producer: Producer) -> None:
    producer.pushed(batch("orders", 5, partition="a"), batch("orders", 5, partition="b"))
    query = Query(database_dsn, queue="orders", startingSeqs='{"a": 4, "later": 2}')
    assert [(row["partition"], row["seq"]) for row in query.drain()] == [("a", 4), ("a", 5)]
    producer.pushed(batch("orders", 1, partition="a"), batch("orders", 3, partition="later"))
    rest = [(row["partition"], row["seq"]) for row in query.drain()]
    assert sorted(rest) == [("a", 6), ("later", 2), ("later", 3)]
    query.close()


def test_time_at_which_a_message_expires_is_a_column_on_request(database_dsn: str, producer: Producer) -> None:
    at = datetime(2099, 1, 1, tzinfo=UTC)
    producer.pushed(batch("orders", 3, expires_at=[None, at, None]))
    producer.pushed(batch("orders", 2))
    rows = read_batch(database_dsn, queue="orders", columns="seq,expires_at", schema=row_schema(["seq", "expires_at"]))
    assert [row["expires_at"] for row in sorted(rows, key=lambda row: row["seq"])] == [None, at, None, None, None]
    bounded = read_batch(
        database_dsn,
        queue="orders",
        startingSeqs='{"Default": 2}',
        endingSeqs='{"Default": 3}',
        schema=row_schema(["expires_at"]),
    )
    assert bounded == [{"expires_at": at}]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingSeqs": "5"}, "JSON such as"),
        ({"startingSeqs": '{"a": -1}'}, "a seq is a number"),
        ({"startingSeqs": '{"a": 1}', "partitions": "a"}, "name partitions themselves"),
        ({"startingSeqs": '{"a": 1}', "mode": "lease", "group": "g"}, "name partitions themselves"),
        ({"endingSeqs": '{"other": {"a": 1}}'}, "names other, which is not read"),
        ({"startingSeqs": '{"a": 1}', "queue": "q,r"}, "by queue"),
    ],
)
def test_seqs_that_make_no_sense_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        read_options("postgresql://nowhere", **{"queue": "q", **given})


def test_all_messages_of_all_queues(database_dsn: str, producer: Producer) -> None:
    for number in range(30):
        producer.pushed(batch("orders", 7, partition=f"p{number % 3}"), batch("returns", 2))
    rows = read_batch(database_dsn, queue="orders,returns", parallelism=4)
    assert assert_in_order(rows) == {
        ("orders", "p0"): 70,
        ("orders", "p1"): 70,
        ("orders", "p2"): 70,
        ("returns", "Default"): 60,
    }
    assert len(read_batch(database_dsn, queue="returns")) == 60


def test_work_is_dealt_out(database_dsn: str, producer: Producer) -> None:
    for _ in range(8):
        producer.pushed(batch("orders", 5_000))
    options = read_options(database_dsn, queue="orders", parallelism=3)
    tasks = plan_batch(options)
    assert [int(task.segments.messages.sum()) for task in tasks] == [15_000, 15_000, 10_000]
    assert assert_in_order(read_tasks(options, tasks)) == {("orders", "Default"): 40_000}


def test_batches_are_bounded(database_dsn: str, producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "CHUNK_MESSAGES_MAX", 250)
    monkeypatch.setattr(reading, "BATCH_BYTES_MAX", 20_000)
    for _ in range(4):
        producer.pushed(Batch("orders", "p", Columns([b'"' + b"x" * 500 + b'"'] * 100)))
    options = read_options(database_dsn, queue="orders")
    [task] = plan_batch(options)
    found = list(ArrowReader(options.access, task.scope, row_schema()).read(task.segments))
    assert sum(part.num_rows for part in found) == 400
    assert max(part.nbytes for part in found) < 25_000
    assert assert_in_order(row for part in found for row in part.to_pylist()) == {("orders", "p"): 400}


def test_little_is_unpacked_at_a_time(database_dsn: str, producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads that are nearly nothing as they are stored."""
    monkeypatch.setattr(reading, "UNPACKED_BYTES_MAX", 250_000)
    for _ in range(6):
        producer.pushed(Batch("orders", "p", Columns([b'"' + b"x" * 100_000 + b'"'])))
    options = read_options(database_dsn, queue="orders")
    [task] = plan_batch(options)
    found = list(ArrowReader(options.access, task.scope, row_schema()).read(task.segments))
    assert [part.num_rows for part in found] == [2, 2, 2]
    assert assert_in_order(row for part in found for row in part.to_pylist()) == {("orders", "p"): 6}


def test_empty_queue_is_no_rows(database_dsn: str, producer: Producer) -> None:
    producer.pushed(batch("orders"))
    with connect(database_dsn) as client:
        assert client.clear("orders") == 1
    assert read_batch(database_dsn, queue="orders") == []


def test_only_some_partitions(database_dsn: str, producer: Producer) -> None:
    producer.pushed(*[batch("orders", 2, partition=f"p{n}") for n in range(10)])
    producer.pushed(batch("orders", 5, partition="p7"))
    rows = read_batch(database_dsn, queue="orders", partitions="p3,p7")
    assert assert_in_order(rows) == {("orders", "p3"): 2, ("orders", "p7"): 7}


def test_only_one_trace(database_dsn: str, producer: Producer) -> None:
    trace = str(uuid4())
    producer.pushed(batch("orders", 3, trace_ids=[trace, None, str(uuid4())]), batch("returns", 1, trace_ids=[trace]))
    producer.pushed(batch("orders", 50, partition="other"))
    rows = read_batch(database_dsn, queue="orders,returns", traceId=trace.upper())
    assert [(row["queue"], row["seq"], row["trace_id"]) for row in rows] == [
        ("orders", 1, trace),
        ("returns", 1, trace),
    ]
    assert read_batch(database_dsn, queue="orders", traceId=str(uuid4())) == []
    # The filter does not need the column to be asked for.
    rows = read_batch(database_dsn, queue="orders", traceId=trace, schema=row_schema(["seq"]))
    assert rows == [{"seq": 1}]


def test_only_some_columns_in_their_order(database_dsn: str, producer: Producer) -> None:
    producer.pushed(batch("orders", 2))
    rows = read_batch(database_dsn, queue="orders", schema=row_schema(["payload", "seq"]))
    assert [list(row.items()) for row in rows] == [
        [("payload", '{"n":1}'), ("seq", 1)],
        [("payload", '{"n":2}'), ("seq", 2)],
    ]


def test_between_times(database_dsn: str, producer: Producer) -> None:
    for number in range(4):
        producer.pushed(batch("orders", 1, start=number))
    with psycopg.connect(database_dsn) as connection:
        connection.execute(
            "update lockstep.segment set created_at = '2026-01-01'::timestamptz + id * interval '1 hour'"
        )
        first = connection.execute("select min(created_at) from lockstep.segment").fetchone()
    assert first is not None
    at = first[0].astimezone(UTC)
    hour = timedelta(hours=1)

    def between(start: datetime, end: datetime) -> list[int]:
        positions = {"startingPosition": start.isoformat(), "endingPosition": end.isoformat()}
        return numbers_of(read_batch(database_dsn, queue="orders", **positions))

    assert between(at + hour, at + 3 * hour) == [1, 2]
    assert between(at + hour / 2, at + 9 * hour) == [1, 2, 3]
    assert between(at + 3 * hour, at) == []
    assert read_batch(database_dsn, queue="orders", startingPosition="latest") == []
    assert read_batch(database_dsn, queue="orders", endingPosition="earliest") == []
    assert numbers_of(read_batch(database_dsn, queue="orders", startingPosition="-36500d")) == [0, 1, 2, 3]


def test_between_offsets(database_dsn: str, producer: Producer) -> None:
    producer.pushed(batch("orders", 2))
    stream = Query(database_dsn, queue="orders")
    stream.step()
    producer.pushed(batch("orders", 3, start=3))
    stream.step()
    stream.close()
    first, second = (json.dumps(offset) for offset in stream.checkpoint)
    assert numbers_of(read_batch(database_dsn, queue="orders", startingPosition=first)) == [3, 4, 5]
    assert numbers_of(read_batch(database_dsn, queue="orders", endingPosition=first)) == [1, 2]
    positions = {"startingPosition": first, "endingPosition": second}
    assert numbers_of(read_batch(database_dsn, queue="orders", **positions)) == [3, 4, 5]


def test_offset_of_another_database_is_refused(database_dsn: str, producer: Producer) -> None:
    producer.pushed(batch("orders"))
    offset = '{"base":"1:1:","to":"1:1:","segment":0,"system":"123/456"}'
    with pytest.raises(CheckpointMismatch, match=r"the option startingPosition .* another database"):
        read_batch(database_dsn, queue="orders", startingPosition=offset)
    ahead = '{"base":"1:1:","to":"99999999:99999999:","segment":5}'
    with pytest.raises(CheckpointMismatch, match="ahead of the database"):
        read_batch(database_dsn, queue="orders", startingPosition=ahead)


def test_missing_queue_and_partition_are_named(database_dsn: str, producer: Producer) -> None:
    producer.pushed(batch("orders"))
    with pytest.raises(QueueNotFound, match="there is no queue 'ordres'"):
        read_batch(database_dsn, queue="orders,ordres")
    with pytest.raises(PartitionNotFound, match="p9"):
        read_batch(database_dsn, queue="orders", partitions="p9")


def test_database_without_our_schema_is_a_clear_error(empty_database_dsn: str) -> None:
    with pytest.raises(Unavailable, match="lockstep migrate"):
        read_batch(empty_database_dsn, queue="orders")


def test_restored_segments_are_refused_until_they_are_adopted(database_dsn: str, producer: Producer) -> None:
    producer.pushed(batch("orders", 3))
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute("update lockstep.segment set txid = '99999999'")
        with pytest.raises(Conflict, match=r"restored from another PostgreSQL.*adopt_segments"):
            read_batch(database_dsn, queue="orders")
        assert connection.execute("select lockstep.adopt_segments()").fetchone() == (1,)
    assert numbers_of(read_batch(database_dsn, queue="orders")) == [1, 2, 3]


def test_database_that_goes_away_in_mid_batch_is_unavailable(
    database_dsn: str, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "CHUNK_SEGMENTS_MAX", 1)
    producer.pushed(batch("orders", 2))
    producer.pushed(batch("orders", 2))
    options = read_options(database_dsn, queue="orders")
    [task] = plan_batch(options)
    batches = ArrowReader(options.access, task.scope, row_schema()).read(task.segments)
    assert next(batches).num_rows == 2
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
            " where datname = current_database() and application_name = 'lockstep-spark'"
        )
    with pytest.raises(Unavailable):
        next(batches)
    # The task is tried again.
    assert len(read_tasks(options, [task])) == 4


def test_ending_position_is_not_for_streams(database_dsn: str) -> None:
    with pytest.raises(InvalidOption, match="endingPosition"):
        Query(database_dsn, queue="orders", endingPosition="latest")


def test_planner_imports_neither_the_other_driver_nor_what_reads() -> None:
    """Spark starts processes that only plan, and waits for them."""
    modules = "'asyncpg', 'cryptography', 'pyarrow.compute'"
    heavy = f"{{{modules}, 'lockstep.spark.read.segment_reader', 'lockstep.engine'}}"
    program = (
        f"import sys, lockstep.spark.read.batch, lockstep.spark.read.stream; print(sorted({heavy} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
