"""The readers of snapshot mode for Spark: thin wrappers around planning and reading, which do not need Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from lockstep.spark.failures import told
from lockstep.spark.options import ReadOptions
from lockstep.spark.read.batch import plan_batch
from lockstep.spark.read.offsets import Offset
from lockstep.spark.read.schema import checked_schema
from lockstep.spark.read.stream import SnapshotStream, SnapshotTask

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class SnapshotPartition(InputPartition):
    """A task in Spark's form."""

    def __init__(self, task: SnapshotTask | None) -> None:
        self.task = task

    def __repr__(self) -> str:
        return f"Range({0 if self.task is None else len(self.task.segments)} segments)"


class _Reading:
    """What batch and stream readers share: it runs on the executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        # The registry's current schema, for all tasks.
        self._options = replace(options, payloads=options.payloads.resolved())
        self._schema = checked_schema(schema, options.types, is_json=options.payloads.format == "json")

    @told
    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        task: SnapshotTask | None = partition.task
        if task is None:
            return
        # The driver, which plans, imports this module as well.
        from lockstep.spark.read.payloads import Payloads
        from lockstep.spark.read.segment_reader import ArrowReader

        options = self._options
        payloads = Payloads(options.payloads, options.payload_mode)
        reader = ArrowReader(options.access, task.scope, self._schema, payloads, task.watch, task.witness)
        yield from reader.read(task.segments)


class BatchReader(_Reading, DataSourceReader):
    @told
    def partitions(self) -> Sequence[InputPartition]:
        # Spark treats an empty list of partitions as a single unspecified partition.
        return [SnapshotPartition(task) for task in plan_batch(self._options)] or [SnapshotPartition(None)]


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """All methods except `read` run in one process of the driver, for as long as the query."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._made: SnapshotStream | None = None

    @property
    def _stream(self) -> SnapshotStream:
        # Created on first use: the readers that travel to the executors have none.
        if self._made is None:
            self._made = SnapshotStream(self._options)
        return self._made

    @told
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._stream.initial().as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One of the limits, because Spark supports only one at a time. It merely tells Spark that limits apply; the
        options define them.
        """
        if self._options.messages_max is not None:
            return ReadMaxRows(self._options.messages_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        if self._options.messages_min is not None:
            return ReadMinRows(self._options.messages_min)
        return ReadAllAvailable()

    @told
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = Offset.of(start)
        end = self._stream.latest(begin, limited=not isinstance(limit, ReadAllAvailable))
        # The same object; otherwise Spark runs an empty batch.
        return start if end is begin else end.as_json()

    @told
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._stream.stop_at_now()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        latest = self._stream.report()
        return None if latest is None else latest.as_json()

    @told
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        return [SnapshotPartition(task) for task in self._stream.plan(Offset.of(start), Offset.of(end))]

    @told
    def commit(self, end: dict[str, Any]) -> None:
        self._stream.commit(Offset.of(end))

    def stop(self) -> None:
        if self._made is not None:
            self._made.close()
