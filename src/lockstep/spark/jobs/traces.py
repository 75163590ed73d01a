"""Traces: the messages of one trace id across queues as a timeline, with the gaps between them and the place where it
stopped.

The status of a message comes from the cursors, the deliveries in flight and the dead letters, for each group that reads
its queue. A step of a pipeline that shares no group counts as a group, by its position. A message is completed when all
of them are done with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import psycopg
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as sf

from lockstep.core.ids import parse_uuid
from lockstep.core.records import MessageStatus
from lockstep.errors import InvalidOption
from lockstep.spark.database import Access
from lockstep.spark.failures import explained_by_spark
from lockstep.spark.jobs.options import (
    Skipped,
    check_positive,
    check_queues,
    check_times,
    readable_queues,
    source_options,
)
from lockstep.spark.jobs.tables import instant, read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Order = Literal["newest", "slowest"]

COLUMNS = ("queue", "partition", "seq", "message_id", "trace_id", "created_at", "kind")
"""The columns read of a message, without its payload."""

_LANE = [("queue", pa.string()), ("partition", pa.string()), ("group", pa.string())]
CURSORS = pa.schema([*_LANE, ("acked", pa.int64()), ("leased_to", pa.int64())])
IN_FLIGHT = pa.schema([*_LANE, ("from_seq", pa.int64()), ("to_seq", pa.int64()), ("leased", pa.bool_())])
DEAD = pa.schema([*_LANE, ("seq", pa.int64()), ("error", pa.string())])

# The worst status over all groups is that of a message, and the worst over its messages that of a trace.
_STATUSES: tuple[MessageStatus, ...] = ("completed", "processing", "pending", "dead_letter")


@dataclass(frozen=True)
class TraceOptions:
    """Selects traces."""

    access: Access = field(default_factory=Access)
    trace_id: str | None = None
    """None: all traces of a period."""
    queues: tuple[str, ...] | None = None
    """None: all."""
    from_at: datetime | None = None
    """Messages created at or after this time."""
    to_at: datetime | None = None
    stopped: bool = False
    """Only traces that are not completed."""
    order: Order = "newest"
    limit: int = 100

    def __post_init__(self) -> None:
        if self.trace_id is not None:
            parse_uuid(self.trace_id, what="trace id")
        if self.queues is not None:
            check_queues(self.queues)
        check_times(self.from_at, self.to_at)
        check_positive("limit", self.limit)
        if self.order not in ("newest", "slowest"):
            raise InvalidOption(f"traces are ordered by newest or slowest, not {self.order!r}")


class TraceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a trace."""

    step: int
    queue: str
    partition: str
    seq: int
    message_id: str
    kind: str | None
    created_at: datetime
    gap_seconds: float
    """Time since the previous message."""
    elapsed_seconds: float
    """Time since the first message."""
    status: MessageStatus
    group: str | None
    """The group that has not completed it, or gave it up."""
    error: str | None


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one trace id, in time order."""

    trace_id: str
    status: MessageStatus
    steps_count: int
    path: str
    """The queues that the trace passed."""
    started_at: datetime
    ended_at: datetime
    duration_seconds: float
    longest_gap_seconds: float
    longest_gap: str | None
    """The two queues between which it occurred."""
    stopped_at: str | None
    """The queue with a message that is not completed; None if all are."""
    error: str | None
    steps: list[TraceStep]


def job(spark: SparkSession, options: TraceOptions, *, skipped: Skipped | None = None) -> list[Trace]:
    """The selected traces. Without a key, a run over all queues leaves out encrypted ones."""
    with explained_by_spark(), options.access.connect() as connection:
        queues = list(options.queues or readable_queues(connection, options.access, skipped))
        if not queues:
            return []
        messages = _messages(spark, options, queues)
        progress = _progress(spark, connection, queues)
        found = chosen(stitched(with_status(messages, *progress)), options)
        rows = found.collect()
    return [_trace(row) for row in rows]


def _messages(spark: SparkSession, options: TraceOptions, queues: Sequence[str]) -> DataFrame:
    given = {"queue": msgspec.json.encode(list(queues)).decode(), "columns": ",".join(COLUMNS)}
    if options.trace_id is not None:
        given["traceId"] = options.trace_id
    if options.from_at is not None:
        given["startingPosition"] = options.from_at.isoformat()
    if options.to_at is not None:
        given["endingPosition"] = options.to_at.isoformat()
    reader = spark.read.format("lockstep").options(**source_options(options.access), **given)
    return with_first(reader.load())


def with_first(messages: DataFrame) -> DataFrame:
    """Messages with a trace id, and messages that began a trace without one: the later messages have their message
    id.
    """
    traced = messages.where(sf.col("trace_id").isNotNull())
    ids = traced.select(sf.col("trace_id").alias("id")).distinct()
    first = messages.where(sf.col("trace_id").isNull()).join(ids, sf.col("message_id") == sf.col("id"), "left_semi")
    return traced.unionByName(first.withColumn("trace_id", sf.col("message_id")))


def _progress(
    spark: SparkSession, connection: psycopg.Connection[Any], queues: Sequence[str]
) -> tuple[DataFrame, DataFrame, DataFrame]:
    arguments = [list(queues)]
    return (
        read_table(spark, connection, "trace_cursors", arguments, CURSORS),
        read_table(spark, connection, "trace_deliveries", arguments, IN_FLIGHT),
        read_table(spark, connection, "trace_dead_letters", arguments, DEAD),
    )


def with_status(messages: DataFrame, cursors: DataFrame, in_flight: DataFrame, dead: DataFrame) -> DataFrame:
    """Messages with their status, the worst over all groups, and the group that has it."""
    partition = ["queue", "partition"]
    flights = in_flight.select(*partition, "group", "from_seq", "to_seq", "leased")
    # Given up by any group: such a group need not have a cursor.
    given_up = dead.groupBy(*partition, "seq").agg(sf.max(sf.struct("group", "error")).alias("died"))
    each = (
        messages.join(cursors, partition, "left")
        .join(
            flights.withColumnsRenamed({"queue": "fq", "partition": "fp", "group": "fg"}),
            (sf.col("queue") == sf.col("fq"))
            & (sf.col("partition") == sf.col("fp"))
            & (sf.col("group") == sf.col("fg"))
            & sf.col("seq").between(sf.col("from_seq"), sf.col("to_seq")),
            "left",
        )
        .join(given_up, [*partition, "seq"], "left")
    )
    rank = (
        sf.when(sf.col("died").isNotNull(), 3)
        .when(sf.col("group").isNull(), 2)
        .when(sf.col("leased"), 1)
        .when(sf.col("from_seq").isNotNull(), 2)
        .when(sf.col("seq") <= sf.col("acked"), 0)
        .when(sf.col("seq") <= sf.col("leased_to"), 1)
        .otherwise(2)
    )
    group = sf.coalesce("died.group", "group").alias("group")
    worst = sf.max(sf.struct(rank.alias("rank"), group, sf.col("died.error").alias("error"))).alias("worst")
    by_message = each.groupBy(*messages.columns).agg(worst)
    return by_message.select(
        *messages.columns,
        sf.col("worst.rank").alias("rank"),
        sf.when(sf.col("worst.rank") > 0, sf.col("worst.group")).alias("group"),
        sf.col("worst.error").alias("error"),
    )


def stitched(messages: DataFrame) -> DataFrame:
    """A row for each trace: its steps in order of time, with the gaps between them, and its status."""
    in_time = Window.partitionBy("trace_id").orderBy("created_at", "message_id")
    whole = Window.partitionBy("trace_id")
    micros = sf.unix_micros("created_at")
    timed = (
        messages.withColumn("micros", micros)
        .withColumn("step", sf.row_number().over(in_time))
        .withColumn("gap", sf.coalesce(sf.col("micros") - sf.lag("micros").over(in_time), sf.lit(0)))
        .withColumn("elapsed", sf.col("micros") - sf.min("micros").over(whole))
        .withColumn("before", sf.lag("queue").over(in_time))
    )
    names = (
        "step",
        "queue",
        "partition",
        "seq",
        "message_id",
        "kind",
        "micros",
        "gap",
        "elapsed",
        "rank",
        "group",
        "error",
    )
    stop = sf.struct(sf.col("rank"), -sf.col("step"), "queue", "error")
    return timed.groupBy("trace_id").agg(
        sf.array_sort(sf.collect_list(sf.struct(*names))).alias("steps"),
        sf.min("micros").alias("started"),
        sf.max("micros").alias("ended"),
        sf.max(sf.struct("gap", "before", "queue")).alias("longest"),
        sf.max(stop).alias("stop"),
    )


def chosen(traces: DataFrame, options: TraceOptions) -> DataFrame:
    """The traces that the options select, in their order."""
    if options.stopped:
        traces = traces.where(sf.col("stop.rank") > 0)
    first = sf.desc("started") if options.order == "newest" else sf.desc(sf.col("ended") - sf.col("started"))
    return traces.orderBy(first, "trace_id").limit(options.limit)


def _trace(row: Any) -> Trace:
    steps = [_step(step) for step in row["steps"]]
    gap, before, after = row["longest"]
    stopped = row["stop"]["rank"] > 0
    return Trace(
        trace_id=row["trace_id"],
        status=_STATUSES[row["stop"]["rank"]],
        steps_count=len(steps),
        path=" → ".join(dict.fromkeys(step.queue for step in steps)),
        started_at=instant(row["started"]),
        ended_at=instant(row["ended"]),
        duration_seconds=_seconds(row["ended"] - row["started"]),
        longest_gap_seconds=_seconds(gap),
        longest_gap=None if before is None else f"{before} → {after}",
        stopped_at=row["stop"]["queue"] if stopped else None,
        error=row["stop"]["error"] if stopped else None,
        steps=steps,
    )


def _step(step: Any) -> TraceStep:
    return TraceStep(
        step=step["step"],
        queue=step["queue"],
        partition=step["partition"],
        seq=step["seq"],
        message_id=step["message_id"],
        kind=step["kind"],
        created_at=instant(step["micros"]),
        gap_seconds=_seconds(step["gap"]),
        elapsed_seconds=_seconds(step["elapsed"]),
        status=_STATUSES[step["rank"]],
        group=step["group"],
        error=step["error"],
    )


def _seconds(micros: int) -> float:
    return micros / 1_000_000
