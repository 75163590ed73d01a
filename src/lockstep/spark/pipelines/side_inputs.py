"""Side inputs: reference data that a step looks up. Each is a DataFrame, read again at a given interval."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from lockstep.core.names import check_name
from lockstep.errors import InvalidOption, LockstepError, StepFailed
from lockstep.spark.database import Access, cursor_of, explained
from lockstep.spark.failures import explain
from lockstep.spark.jobs.options import source_options
from lockstep.spark.options import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERY_BATCH = "batch"
"""The refresh of a side input that is read again for every batch."""
PARTITION = "partition"

Load = Callable[["SparkSession", Access], "DataFrame"]


@dataclass(frozen=True)
class SideInput:
    """A side input of a step."""

    kind: str
    """Its kind, as shown in a drawing of the plan."""
    load: Load = field(repr=False)
    refresh: str | None = None
    queue: str | None = None
    """The queue that it holds the latest messages of."""

    @property
    def refresh_seconds(self) -> float | None:
        """None: it is read once, when the step starts."""
        if self.refresh is None or self.refresh == EVERY_BATCH:
            return None if self.refresh is None else 0.0
        return parse_duration(self.refresh).total_seconds()

    def __str__(self) -> str:
        often = {None: "once", EVERY_BATCH: "for every batch"}.get(self.refresh, f"every {self.refresh}")
        return f"{self.kind}, read {often}"


def parquet(path: str, *, refresh: str | None = None) -> SideInput:
    """Parquet files: any path that Spark can read."""
    _check_text(path, "the path of Parquet files")
    return _made(f"Parquet {path}", lambda spark, _: spark.read.parquet(path), refresh)


def table(name: str, *, refresh: str | None = None) -> SideInput:
    """A table or view of Spark's catalog."""
    _check_text(name, "the name of a table")
    return _made(f"table {name}", lambda spark, _: spark.table(name), refresh)


def postgres(query: str, *, schema: str, refresh: str | None = None) -> SideInput:
    """The result of a PostgreSQL query, with its columns as DDL. It runs on the driver, in the database of the queues,
    and is meant for tables that fit into memory."""
    _check_text(query, "the query of a side input")
    _check_text(schema, "the schema of a side input")
    return _made("a query of PostgreSQL", lambda spark, access: _queried(spark, access, query, schema), refresh)


def latest(
    queue: str, *, key: str = PARTITION, payload_schema: str | None = None, refresh: str | None = None
) -> SideInput:
    """The last message of each key of a queue: the queue as a table.

    The key is `partition`, or an expression such as `data.sku` over the columns of a message. Within a partition the
    last message wins; between partitions, the one created last. A key whose last payload is null is left out.
    """
    check_name(queue, what="the queue of a side input")
    _check_text(key, "the key of a side input")
    kind = f"latest of [{queue}] by {key}"
    return _made(kind, lambda spark, access: _latest(spark, access, queue, key, payload_schema), refresh, queue)


def _made(kind: str, load: Load, refresh: str | None, queue: str | None = None) -> SideInput:
    made = SideInput(kind, load, refresh, queue)
    try:
        seconds = made.refresh_seconds
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidOption(f"refresh is {refresh!r}: give {EVERY_BATCH!r}, a span such as '10m', or None") from error
    if seconds == 0 and refresh != EVERY_BATCH:
        raise InvalidOption(f"refresh is {refresh!r}: for every batch say {EVERY_BATCH!r}")
    return made


def _check_text(text: Any, what: str) -> None:
    if not isinstance(text, str) or not text.strip():
        raise InvalidOption(f"{what} must be text that is not empty, not {text!r}")


def _queried(spark: SparkSession, access: Access, query: str, schema: str) -> DataFrame:
    with access.connect() as connection, explained():
        rows = cursor_of(connection).execute(query.encode()).fetchall()
    return spark.createDataFrame(rows, schema)


def _latest(spark: SparkSession, access: Access, queue: str, key: str, payload_schema: str | None) -> DataFrame:
    from pyspark.sql import functions as sf

    options = {**source_options(access), "queue": msgspec.json.encode([queue]).decode()}
    if payload_schema is not None:
        options |= {"payloadSchema": payload_schema, "payloadMode": "permissive"}
    messages = spark.read.format("lockstep").options(**options).load()
    # Partitions have no order relative to each other; the messages of one are in the order of their seqs.
    by = ["seq"] if key == PARTITION else ["created_at", "seq", "message_id"]
    newest = sf.max_by(sf.struct(*messages.columns), sf.struct(*by)).alias("newest")
    keyed = messages.withColumn("_key", sf.expr(key)).where("_key is not null")
    return keyed.groupBy("_key").agg(newest).select("newest.*").where("payload <> 'null'")


class SideFrames:
    """The side inputs of a running step. Each is kept until it is due to be read again, so that a retried batch sees
    the same rows."""

    def __init__(
        self, inputs: Mapping[str, SideInput], access: Access, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._inputs = inputs
        self._access = access
        self._clock = clock
        self._kept: dict[str, tuple[DataFrame, float]] = {}

    def frames(self, spark: SparkSession) -> dict[str, DataFrame]:
        """By name, reread if due. Raises StepFailed, or the database's errors."""
        now = self._clock()
        for name, one in self._inputs.items():
            if name not in self._kept or self._is_due(one, self._kept[name][1], now):
                self._keep(name, self._loaded(name, one, spark), now)
        return {name: frame for name, (frame, _) in self._kept.items()}

    def is_due(self) -> bool:
        """Whether any input is due to be read again."""
        now = self._clock()
        return any(self._is_due(self._inputs[name], read_at, now) for name, (_, read_at) in self._kept.items())

    def _is_due(self, one: SideInput, read_at: float, now: float) -> bool:
        seconds = one.refresh_seconds
        return seconds is not None and now - read_at >= seconds

    def _loaded(self, name: str, one: SideInput, spark: SparkSession) -> DataFrame:
        from pyspark.sql import functions as sf

        try:
            # Spark finds cached data by its plan, so each reading needs a distinct plan.
            reading = sf.lit(uuid4().hex).isNotNull()
            return one.load(spark, self._access).where(reading).persist()
        except LockstepError:
            raise
        except Exception as error:
            raise StepFailed(
                f"its side input {name!r} ({one.kind}) cannot be read: {explain(error).message}"
            ) from error

    def _keep(self, name: str, frame: DataFrame, now: float) -> None:
        before = self._kept.get(name)
        self._kept[name] = frame, now
        if before is not None:
            before[0].unpersist()

    def close(self) -> None:
        for frame, _ in self._kept.values():
            frame.unpersist()
        self._kept.clear()
