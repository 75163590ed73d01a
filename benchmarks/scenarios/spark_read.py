"""Spark reads a queue, against Spark's own JDBC source on a table with a row per message.

Both read the same messages into a sink that drops them, with as many tasks as there are cores. The JDBC source has what
makes it fast: ranges of the key in parallel, and a large fetch size. Its table has four columns, and one bar is for the
same four of ours; the other is for all thirteen, because that is what a read gives that does not say which it needs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks.harness import Bar, Outcome, Table, progress
from benchmarks.messages import Messages
from lockstep.core.messages import Batch, Columns
from lockstep.storage.postgres.cache import NameCache
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.push.conversation import push_now
from lockstep.storage.postgres.within import converse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUE = "spark-read"
PARTITIONS = 100
BATCH = 1_000
TABLE = "row_per_message_read"
_MAKE_TABLE = f"""
create table {TABLE} (
    id bigint generated always as identity primary key,
    "partition" text not null,
    payload text not null,
    created_at timestamptz not null default now()
)
"""
_FETCH_ROWS = 10_000
_RATIO_BAR, _WIDE_BAR = 2.0, 1.5
_BYTES_BAR = 0.25

_OURS, _OURS_WIDE, _THEIRS = "lockstep, the same columns", "lockstep, all 13 columns", "Spark's JDBC source"


def spark_read(
    spark: SparkSession, dsn: str, jdbc: Mapping[str, str], *, count: int, rounds: int, tasks: int
) -> Outcome:
    """Read `count` messages with each, in turn."""
    bytes_ratio = _fill(dsn, count)

    def ours(**options: str) -> DataFrame:
        given = {"dsn": dsn, "queue": QUEUE, "parallelism": str(tasks), **options}
        return spark.read.format("lockstep").options(**given).load()

    def theirs() -> DataFrame:
        options = {
            **jdbc,
            "dbtable": TABLE,
            "partitionColumn": "id",
            "lowerBound": "1",
            "upperBound": str(count),
            "numPartitions": str(tasks),
            "fetchsize": str(_FETCH_ROWS),
        }
        return spark.read.format("jdbc").options(**options).load()

    # Defined before it is timed, on both sides: what counts is the read.
    frames = {
        _THEIRS: theirs(),
        _OURS: ours(columns="seq,partition,payload,created_at"),
        _OURS_WIDE: ours(),
    }
    for name, frame in frames.items():
        found = frame.count()
        if found != count:
            raise RuntimeError(f"{name} reads {found} of {count} messages")
    taken = _measure(frames, count, rounds)
    return _outcome(taken, bytes_ratio, count)


def _fill(dsn: str, count: int) -> float:
    """The same messages for both; returns how many of their bytes ours take."""
    messages, names = Messages(), NameCache(PARTITIONS)
    with psycopg.connect(dsn) as connection:
        for number in range(count // BATCH):
            batch = Batch(QUEUE, f"p{number % PARTITIONS}", Columns(messages.batch(BATCH)))
            converse(connection, push_now([batch], names, encryption=Encryption(), at=None))
            connection.commit()
        connection.execute(_MAKE_TABLE)  # type: ignore[arg-type]
        with connection.cursor().copy(f'copy {TABLE} ("partition", payload) from stdin') as copy:  # type: ignore[arg-type]
            for number in range(count // BATCH):
                for text in messages.text_batch(BATCH):
                    copy.write_row((f"p{number % PARTITIONS}", text))
        connection.commit()
        connection.autocommit = True
        connection.execute("vacuum analyze")
        sizes = "select pg_total_relation_size('lockstep.segment') + pg_total_relation_size('lockstep.run')"
        [[ours]] = connection.execute(sizes).fetchall()
        [[theirs]] = connection.execute(f"select pg_total_relation_size('{TABLE}')").fetchall()  # type: ignore[arg-type]
    progress(f"  {count:,} messages take {ours / 1e6:,.0f} MB, and {theirs / 1e6:,.0f} MB as rows")
    return float(ours / theirs)


def _measure(frames: Mapping[str, DataFrame], count: int, rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in frames}
    for number in range(rounds + 1):
        for name, frame in frames.items():
            began = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            if number:  # the first round warms up
                taken[name].append(time.perf_counter() - began)
                progress(f"  {number}/{rounds}  {name:30} {count / taken[name][-1]:12,.0f} /s")
    return taken


def _outcome(taken: Mapping[str, list[float]], bytes_ratio: float, count: int) -> Outcome:
    def ratio(name: str) -> float:
        return median(base / own for base, own in zip(taken[_THEIRS], taken[name], strict=True))

    rows: list[dict[str, Any]] = [
        {"name": name, "messages_per_second": round(count / median(seconds)), "ratio": round(ratio(name), 2)}
        for name, seconds in taken.items()
    ]
    return Outcome(
        [Table(f"Spark reads {count:,} messages of about 256 bytes; ours take {bytes_ratio:.0%} of the bytes", rows)],
        [
            Bar.at_least("Spark read, x JDBC with partitioned reads", ratio(_OURS), _RATIO_BAR),
            Bar.at_least("Spark read of all columns, x the same", ratio(_OURS_WIDE), _WIDE_BAR),
            Bar.at_most("bytes on disk, of those of a row per message", bytes_ratio, _BYTES_BAR),
        ],
    )
