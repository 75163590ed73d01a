"""Statistics by window, queue and group, into a table that a dashboard reads; `report.py` draws it.

What is counted comes from where it is known: pushes and traces from the messages, completions and backlog from the
samples that servers take, deaths from the dead letters, and latency and lag from the cursors as they stand. A window
that is computed again keeps what it knew (`sql/procedures/stat_window.sql`), so that the job may run at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pyarrow as pa
from pyspark.sql import functions as sf

from lockstep.errors import InvalidOption
from lockstep.spark.database import Access
from lockstep.spark.failures import explained_by_spark
from lockstep.spark.jobs.options import check_queues, check_times, source_options
from lockstep.spark.jobs.tables import TIME, instant, read_table
from lockstep.spark.positions import find_queues

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData, SparkSession

WINDOW_SECONDS_MAX = 7 * 86_400
WINDOWS_MAX = 10_000
ROWS_AT_ONCE = 1_000
WHOLE_QUEUE = ""
"""In place of a group: what is said of the queue itself."""

KEYS = ("queue", "group_name", "window_start")
MEASURES = (
    "pushed",
    "completed",
    "dead",
    "pending",
    "lag_seconds",
    "attempts_max",
    "latency_samples",
    "latency_seconds_p50",
    "latency_seconds_p95",
    "latency_seconds_max",
    "trace_samples",
    "trace_seconds_p50",
    "trace_seconds_p95",
    "trace_seconds_max",
)

_ALL_QUEUES = "select name, id from lockstep.queue order by name"
_NOW = "select clock_timestamp()"
_SAMPLES = """
select s.queue, s.at, s.completed, s.pending, s.lag_seconds from lockstep.sample s
where s.queue = any (%s::text[]) and s.at >= %s and s.at < %s
"""
SAMPLES = pa.schema(
    [
        ("queue", pa.string()),
        ("at", TIME),
        ("completed", pa.int64()),
        ("pending", pa.int64()),
        ("lag_seconds", pa.float64()),
    ]
)
_DEAD = """
select q.name, d.group_name, d.failed_at, d.attempts
from lockstep.dead_letter d join lockstep.queue q on q.id = d.queue_id
where q.name = any (%s::text[]) and d.failed_at >= %s and d.failed_at < %s
"""
DEAD = pa.schema([("queue", pa.string()), ("group_name", pa.string()), ("at", TIME), ("attempts", pa.int32())])
# When the last message that a group completed in a partition was created, and what it has before it.
_CURSORS = """
select q.name, g.name, c.consumed_at, done.created_at, lockstep.behind(c), head.created_at, c.attempts
from lockstep.queue q
join lockstep.consumer_group g on g.queue_id = q.id
join lockstep.cursor c on c.group_id = g.id
left join lateral (
    select s.created_at from lockstep.runs_between(c.partition_id, c.acked - 1, c.acked) r
    join lockstep.segment s on s.id = r.segment_id
) done on true
left join lateral (
    select s.created_at from lockstep.head_run(c) r join lockstep.segment s on s.id = r.segment_id
) head on true
where q.name = any (%s::text[])
"""
CURSORS = pa.schema(
    [
        ("queue", pa.string()),
        ("group_name", pa.string()),
        ("consumed_at", TIME),
        ("created_at", TIME),
        ("lag", pa.int64()),
        ("oldest_at", TIME),
        ("attempts", pa.int32()),
    ]
)
_PUT = "select lockstep.put_stat_windows(%s::jsonb)"
_PRUNE = "select lockstep.prune_stat_windows(%s)"


@dataclass(frozen=True)
class StatsOptions:
    """Of which queues, over which time, in which steps."""

    access: Access = field(default_factory=Access)
    queues: tuple[str, ...] | None = None
    """None: all."""
    from_at: datetime | None = None
    """None: a day before the end."""
    to_at: datetime | None = None
    """None: now."""
    window_seconds: int = 300
    keep_days: int = 90
    """Windows that are older are removed."""

    def __post_init__(self) -> None:
        if self.queues is not None:
            check_queues(self.queues)
        check_times(self.from_at, self.to_at)
        if not 1 <= self.window_seconds <= WINDOW_SECONDS_MAX:
            raise InvalidOption(f"window_seconds must be 1 to {WINDOW_SECONDS_MAX}, not {self.window_seconds}")
        if self.keep_days < 1:
            raise InvalidOption(f"keep_days must be at least 1, not {self.keep_days}")

    def span(self, now: datetime) -> tuple[datetime, datetime]:
        """From when to when: whole windows. Raises InvalidOption if they are too many."""
        to_at = self.to_at or now
        from_at = self.from_at or to_at - timedelta(days=1)
        if (to_at - from_at).total_seconds() / self.window_seconds > WINDOWS_MAX:
            raise InvalidOption(f"the time range has more than {WINDOWS_MAX} windows of {self.window_seconds} s")
        return _floor(from_at, self.window_seconds), to_at


class Computed(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did."""

    queues: int
    windows: int
    """That were written: one for each window, queue and group of which something is known."""
    removed: int
    from_at: datetime
    to_at: datetime
    window_seconds: int


def job(spark: SparkSession, options: StatsOptions) -> Computed:
    """Compute the windows and write them. Raises QueueNotFound."""
    with explained_by_spark(), options.access.connect() as connection:
        now = _one(connection, _NOW)
        from_at, to_at = options.span(now)
        queues = _queues(connection, options)
        written = 0
        if queues:
            parts = _parts(spark, connection, options, queues, (from_at, to_at, now))
            written = _write(connection, joined(parts), options.window_seconds, now)
        removed = _one(connection, _PRUNE, now - timedelta(days=options.keep_days))
    return Computed(
        queues=len(queues),
        windows=written,
        removed=removed,
        from_at=from_at,
        to_at=to_at,
        window_seconds=options.window_seconds,
    )


def _queues(connection: psycopg.Connection[Any], options: StatsOptions) -> list[str]:
    if options.queues is not None:
        return list(find_queues(connection, options.queues))
    return [name for name, _ in connection.execute(_ALL_QUEUES)]


def _parts(
    spark: SparkSession,
    connection: psycopg.Connection[Any],
    options: StatsOptions,
    queues: Sequence[str],
    times: tuple[datetime, datetime, datetime],
) -> list[DataFrame]:
    from_at, to_at, now = times
    seconds = options.window_seconds
    messages = _messages(spark, options.access, queues, from_at, to_at)
    samples = read_table(spark, connection, _SAMPLES, (queues, from_at, to_at), SAMPLES)
    dead = read_table(spark, connection, _DEAD, (queues, from_at, to_at), DEAD)
    cursors = read_table(spark, connection, _CURSORS, (queues,), CURSORS)
    parts = [
        pushed(messages, seconds),
        trace_ages(messages, seconds),
        sampled(samples, seconds),
        deaths(dead, seconds),
        latencies(cursors, seconds).where(sf.col("window_start").between(sf.lit(from_at), sf.lit(to_at))),
    ]
    # What is pending is known of this moment, and of no other.
    return [*parts, backlog(cursors, now, seconds)] if options.to_at is None else parts


def _messages(
    spark: SparkSession, access: Access, queues: Sequence[str], from_at: datetime, to_at: datetime
) -> DataFrame:
    given = {
        "queue": msgspec.json.encode(list(queues)).decode(),
        "columns": "queue,created_at,trace_id",
        "startingPosition": from_at.isoformat(),
        "endingPosition": to_at.isoformat(),
    }
    return spark.read.format("lockstep").options(**source_options(access), **given).load()


def window_start(at: Column, seconds: int) -> Column:
    """When the window began in which a time lies."""
    return sf.timestamp_seconds(sf.floor(sf.unix_seconds(at) / seconds) * seconds)


def pushed(messages: DataFrame, seconds: int) -> DataFrame:
    """How many messages came, by queue and window."""
    return _of_queues(messages, "created_at", seconds).agg(sf.count("*").alias("pushed"))


def trace_ages(messages: DataFrame, seconds: int) -> DataFrame:
    """How long after the first message of their trace messages came: the way through a pipeline, end to end."""
    traced = messages.where(sf.col("trace_id").isNotNull())
    first = traced.groupBy("trace_id").agg(sf.min("created_at").alias("began_at"))
    later = traced.join(first, "trace_id").where(sf.col("created_at") > sf.col("began_at"))
    aged = later.withColumn("seconds", _seconds_between("began_at", "created_at"))
    return _of_queues(aged, "created_at", seconds).agg(*_distribution("trace"))


def sampled(samples: DataFrame, seconds: int) -> DataFrame:
    """What the samples of the servers say, by queue and window."""
    return _of_queues(samples, "at", seconds).agg(
        sf.sum("completed").alias("completed"),
        sf.max("pending").alias("pending"),
        sf.max("lag_seconds").alias("lag_seconds"),
    )


def deaths(dead: DataFrame, seconds: int) -> DataFrame:
    """Dead letters by window, of each group and of the whole queue."""
    both = dead.unionByName(dead.withColumn("group_name", sf.lit(WHOLE_QUEUE)))
    counted = (sf.count("*").alias("dead"), sf.max("attempts").alias("attempts_max"))
    return both.groupBy("queue", "group_name", window_start(sf.col("at"), seconds).alias("window_start")).agg(*counted)


def latencies(cursors: DataFrame, seconds: int) -> DataFrame:
    """How long it took from push to completion: of the last message that each group completed in each partition."""
    known = cursors.where(sf.col("consumed_at").isNotNull() & sf.col("created_at").isNotNull())
    timed = known.withColumn("seconds", sf.greatest(_seconds_between("created_at", "consumed_at"), sf.lit(0.0)))
    start = window_start(sf.col("consumed_at"), seconds).alias("window_start")
    return timed.groupBy("queue", "group_name", start).agg(*_distribution("latency"))


def backlog(cursors: DataFrame, now: datetime, seconds: int) -> DataFrame:
    """What groups have before them now, how old it is, and how often its head was tried."""
    age = sf.when(sf.col("lag") > 0, (sf.unix_micros(sf.lit(now)) - sf.unix_micros("oldest_at")) / 1e6)
    return cursors.groupBy("queue", "group_name", window_start(sf.lit(now), seconds).alias("window_start")).agg(
        sf.sum("lag").alias("pending"),
        sf.max(sf.coalesce(sf.greatest(age, sf.lit(0.0)), sf.lit(0.0))).alias("lag_seconds"),
        sf.max("attempts").alias("attempts_max"),
    )


def joined(parts: Sequence[DataFrame]) -> DataFrame:
    """One row for each window, queue and group, with all that is known of it."""
    every = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    present = [name for name in MEASURES if name in every.columns]
    # A measure that several parts know is that of the one that saw most.
    return every.groupBy(*KEYS).agg(*[sf.max(name).alias(name) for name in present])


def _of_queues(rows: DataFrame, at: str, seconds: int) -> GroupedData:
    """Rows grouped by queue and window."""
    start = window_start(sf.col(at), seconds).alias("window_start")
    return rows.groupBy("queue", sf.lit(WHOLE_QUEUE).alias("group_name"), start)


def _distribution(name: str) -> list[Column]:
    """Of the column `seconds`."""
    return [
        sf.count("*").alias(f"{name}_samples"),
        sf.percentile("seconds", sf.lit(0.5)).alias(f"{name}_seconds_p50"),
        sf.percentile("seconds", sf.lit(0.95)).alias(f"{name}_seconds_p95"),
        sf.max("seconds").alias(f"{name}_seconds_max"),
    ]


def _seconds_between(earlier: str, later: str) -> Column:
    return (sf.unix_micros(later) - sf.unix_micros(earlier)) / 1e6


def _write(connection: psycopg.Connection[Any], windows: DataFrame, seconds: int, now: datetime) -> int:
    rows = windows.withColumn("window_start", sf.unix_micros("window_start")).toLocalIterator()
    written = 0
    with connection.transaction():
        while page := list(islice(rows, ROWS_AT_ONCE)):
            encoded = msgspec.json.encode(list(_records(page, seconds, now))).decode()
            written += _one(connection, _PUT, encoded)
    return written


def _records(rows: Sequence[Any], seconds: int, now: datetime) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {
            **row.asDict(),
            "window_start": instant(row["window_start"]),
            "window_seconds": seconds,
            "computed_at": now,
        }


def _one(connection: psycopg.Connection[Any], query: str, *arguments: Any) -> Any:
    row = connection.execute(query, arguments).fetchone()
    assert row is not None
    return row[0]


def _floor(at: datetime, seconds: int) -> datetime:
    stamp = int(at.timestamp())
    return datetime.fromtimestamp(stamp - stamp % seconds, UTC)
