"""Statistics by window, queue and group, in a table for dashboards; `report.py` draws them.

Each figure comes from its best source: pushes and traces from the messages, completions and backlog from the samples
that servers take, deaths from the dead letters, latency and lag from the current cursors. A window that is computed
again keeps its earlier figures (`sql/procedures/stat_window.sql`), so the job may run at any time.
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
from lockstep.spark.database import Access, cursor_of, result_of
from lockstep.spark.failures import explained_by_spark
from lockstep.spark.jobs.options import Skipped, check_queues, check_times, readable_queues, source_options
from lockstep.spark.jobs.tables import TIME, instant, read_table
from lockstep.spark.read.positions import find_queues
from lockstep.storage.postgres import sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData, SparkSession

WINDOW_SECONDS_MAX = 7 * 86_400
WINDOWS_MAX = 10_000
ROWS_AT_ONCE = 1_000
WHOLE_QUEUE = ""
"""Instead of a group: figures of the queue itself."""

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

_NOW = "select clock_timestamp()"
SAMPLES = pa.schema(
    [
        ("queue", pa.string()),
        ("at", TIME),
        ("seconds", pa.float64()),
        ("completed", pa.int64()),
        ("pending", pa.int64()),
        ("lag_seconds", pa.float64()),
    ]
)
DEAD = pa.schema([("queue", pa.string()), ("group_name", pa.string()), ("at", TIME), ("attempts", pa.int32())])
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
_PARTITIONS = 1_000
_SAMPLE: sql.Procedure[tuple[bool, bool]] = sql.procedure("sample")
_PUT: sql.Procedure[int] = sql.procedure("put_stat_windows")
_PRUNE: sql.Procedure[int] = sql.procedure("prune_stat_windows")


@dataclass(frozen=True)
class StatsOptions:
    """Queues, period and window length."""

    access: Access = field(default_factory=Access)
    queues: tuple[str, ...] | None = None
    """None: all."""
    from_at: datetime | None = None
    """None: a day before the end."""
    to_at: datetime | None = None
    """None: now."""
    window_seconds: int = 300
    keep_days: int = 90
    """Older windows are removed."""

    def __post_init__(self) -> None:
        if self.queues is not None:
            check_queues(self.queues)
        check_times(self.from_at, self.to_at)
        if not 1 <= self.window_seconds <= WINDOW_SECONDS_MAX:
            raise InvalidOption(f"window_seconds must be 1 to {WINDOW_SECONDS_MAX}, not {self.window_seconds}")
        if self.keep_days < 1:
            raise InvalidOption(f"keep_days must be at least 1, not {self.keep_days}")

    def span(self, now: datetime) -> tuple[datetime, datetime]:
        """The period in whole windows. Raises InvalidOption if there are too many."""
        to_at = self.to_at or now
        from_at = self.from_at or to_at - timedelta(days=1)
        if (to_at - from_at).total_seconds() / self.window_seconds > WINDOWS_MAX:
            raise InvalidOption(f"the time range has more than {WINDOWS_MAX} windows of {self.window_seconds} s")
        return _floor(from_at, self.window_seconds), to_at


class Computed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    queues: int
    windows: int
    """Windows written: one for each window, queue and group with data."""
    removed: int
    from_at: datetime
    to_at: datetime
    window_seconds: int


def job(spark: SparkSession, options: StatsOptions, *, skipped: Skipped | None = None) -> Computed:
    """Compute the windows and write them. Raises QueueNotFound.

    Without a key, a run over all queues leaves out encrypted ones."""
    with explained_by_spark(), options.access.connect() as connection:
        [[now]] = connection.execute(_NOW).fetchall()
        from_at, to_at = options.span(now)
        queues = _queues(connection, options, skipped)
        if options.to_at is None:
            sample(connection, queues)
        written = 0
        if queues:
            parts = _parts(spark, connection, options, queues, (from_at, to_at, now))
            written = _write(connection, joined(parts), options.window_seconds, now)
        before = now - timedelta(days=options.keep_days)
        removed = result_of(cursor_of(connection), _PRUNE(before=before))
    return Computed(
        queues=len(queues),
        windows=written,
        removed=removed,
        from_at=from_at,
        to_at=to_at,
        window_seconds=options.window_seconds,
    )


def _queues(connection: psycopg.Connection[Any], options: StatsOptions, skipped: Skipped | None) -> list[str]:
    if options.queues is not None:
        return list(find_queues(connection, options.queues))
    return readable_queues(connection, options.access, skipped)


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
    samples = read_table(spark, connection, "stats_samples", (queues, from_at, to_at), SAMPLES)
    dead = read_table(spark, connection, "stats_dead_letters", (queues, from_at, to_at), DEAD)
    cursors = read_table(spark, connection, "stats_cursors", (queues,), CURSORS)
    parts = [
        pushed(messages, seconds),
        trace_ages(messages, seconds),
        sampled(samples, seconds).where(sf.col("window_start").between(sf.lit(from_at), sf.lit(to_at))),
        deaths(dead, seconds),
        latencies(cursors, seconds).where(sf.col("window_start").between(sf.lit(from_at), sf.lit(to_at))),
    ]
    # Pending messages are known only for the present.
    return [*parts, backlog(cursors, now, seconds)] if options.to_at is None else parts


def sample(connection: psycopg.Connection[Any], queues: Sequence[str]) -> None:
    """Take a sample now: the last one may be a minute old, and without a running server there is none."""
    for id_ in find_queues(connection, queues).values():
        more = True
        while more:
            _, more = result_of(cursor_of(connection), _SAMPLE(queue_id=id_, partitions=_PARTITIONS, at=None))


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
    """The start of the window that contains a time."""
    return sf.timestamp_seconds(sf.floor(sf.unix_seconds(at) / seconds) * seconds)


def pushed(messages: DataFrame, seconds: int) -> DataFrame:
    """Number of pushed messages, by queue and window."""
    return _of_queues(messages, "created_at", seconds).agg(sf.count("*").alias("pushed"))


def trace_ages(messages: DataFrame, seconds: int) -> DataFrame:
    """How long after the first message of their trace messages arrived: the latency through a pipeline, end to end."""
    traced = messages.where(sf.col("trace_id").isNotNull())
    first = traced.groupBy("trace_id").agg(sf.min("created_at").alias("began_at"))
    later = traced.join(first, "trace_id").where(sf.col("created_at") > sf.col("began_at"))
    aged = later.withColumn("seconds", _seconds_between("began_at", "created_at"))
    return _of_queues(aged, "created_at", seconds).agg(*_distribution("trace"))


def sampled(samples: DataFrame, seconds: int) -> DataFrame:
    """The samples, by queue and window. Completions since the previous sample are distributed over the windows between
    the two samples; pending messages count at the time of the sample."""
    keys = ("queue", sf.lit(WHOLE_QUEUE).alias("group_name"), "window_start")
    completed = _dealt_out(samples, seconds).groupBy(*keys).agg(sf.sum("share").alias("completed"))
    moments = _of_queues(samples, "at", seconds).agg(
        sf.max("pending").alias("pending"), sf.max("lag_seconds").alias("lag_seconds")
    )
    return completed.unionByName(moments, allowMissingColumns=True)


def _dealt_out(samples: DataFrame, seconds: int) -> DataFrame:
    """Samples by the windows that they overlap, each with its share: whole messages, which add up to those of the
    sample."""
    window = seconds * 1_000_000
    timed = samples.withColumn("until", sf.unix_micros("at")).withColumn(
        "since", sf.col("until") - sf.greatest(sf.ceil(sf.col("seconds") * 1_000_000), sf.lit(1))
    )
    numbers = sf.sequence(sf.floor(sf.col("since") / window), sf.floor((sf.col("until") - 1) / window))
    placed = timed.withColumn("number", sf.explode(numbers))

    def completed_until(micros: Column) -> Column:
        part = (micros - sf.col("since")) / (sf.col("until") - sf.col("since"))
        return sf.floor(sf.col("completed") * sf.greatest(sf.least(part, sf.lit(1.0)), sf.lit(0.0)))

    share = completed_until((sf.col("number") + 1) * window) - completed_until(sf.col("number") * window)
    return placed.select(
        "queue", sf.timestamp_micros(sf.col("number") * window).alias("window_start"), share.alias("share")
    )


def deaths(dead: DataFrame, seconds: int) -> DataFrame:
    """Dead letters by window, per group and for the whole queue."""
    both = dead.unionByName(dead.withColumn("group_name", sf.lit(WHOLE_QUEUE)))
    counted = (sf.count("*").alias("dead"), sf.max("attempts").alias("attempts_max"))
    return both.groupBy("queue", "group_name", window_start(sf.col("at"), seconds).alias("window_start")).agg(*counted)


def latencies(cursors: DataFrame, seconds: int) -> DataFrame:
    """Time from push to completion of the last message that each group completed in each partition."""
    known = cursors.where(sf.col("consumed_at").isNotNull() & sf.col("created_at").isNotNull())
    timed = known.withColumn("seconds", sf.greatest(_seconds_between("created_at", "consumed_at"), sf.lit(0.0)))
    start = window_start(sf.col("consumed_at"), seconds).alias("window_start")
    return timed.groupBy("queue", "group_name", start).agg(*_distribution("latency"))


def backlog(cursors: DataFrame, now: datetime, seconds: int) -> DataFrame:
    """What groups have pending now, how old it is, and how often its head was tried."""
    age = sf.when(sf.col("lag") > 0, (sf.unix_micros(sf.lit(now)) - sf.unix_micros("oldest_at")) / 1e6)
    return cursors.groupBy("queue", "group_name", window_start(sf.lit(now), seconds).alias("window_start")).agg(
        sf.sum("lag").alias("pending"),
        sf.max(sf.coalesce(sf.greatest(age, sf.lit(0.0)), sf.lit(0.0))).alias("lag_seconds"),
        sf.max("attempts").alias("attempts_max"),
    )


def joined(parts: Sequence[DataFrame]) -> DataFrame:
    """One row per window, queue and group, with all measures."""
    every = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    present = [name for name in MEASURES if name in every.columns]
    # If several parts have a measure, the highest value counts.
    return every.groupBy(*KEYS).agg(*[sf.max(name).alias(name) for name in present])


def _of_queues(rows: DataFrame, at: str, seconds: int) -> GroupedData:
    """Rows grouped by queue and window."""
    start = window_start(sf.col(at), seconds).alias("window_start")
    return rows.groupBy("queue", sf.lit(WHOLE_QUEUE).alias("group_name"), start)


def _distribution(name: str) -> list[Column]:
    """The distribution of the column `seconds`."""
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
            written += result_of(cursor_of(connection), _PUT(rows=encoded))
    return written


def _records(rows: Sequence[Any], seconds: int, now: datetime) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {
            **row.asDict(),
            "window_start": instant(row["window_start"]),
            "window_seconds": seconds,
            "computed_at": now,
        }


def _floor(at: datetime, seconds: int) -> datetime:
    stamp = int(at.timestamp())
    return datetime.fromtimestamp(stamp - stamp % seconds, UTC)
