"""The readers of snapshot mode as Spark sees them: thin shells around what plans and reads, which needs no Spark."""

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
    """A task, as Spark carries it."""

    def __init__(self, task: SnapshotTask | None) -> None:
        self.task = task

    def __repr__(self) -> str:
        return f"Range({0 if self.task is None else len(self.task.segments)} segments)"


class _Reading:
    """What batch and stream readers have in common: it runs on the executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        # The schema that the registry has now, for all tasks.
        self._options = replace(options, payloads=options.payloads.resolved())
        self._schema = checked_schema(schema, options.types, is_json=options.payloads.format == "json")

    @told
    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        task: SnapshotTask | None = partition.task
        if task is None:
            return
        # The driver, which plans, imports this module, too.
        from lockstep.spark.read.payloads import Payloads
        from lockstep.spark.read.segment_reader import ArrowReader

        options = self._options
        payloads = Payloads(options.payloads, options.payload_mode)
        reader = ArrowReader(options.access, task.scope, self._schema, payloads, task.watch, task.witness)
        yield from reader.read(task.segments)


class BatchReader(_Reading, DataSourceReader):
    @told
    def partitions(self) -> Sequence[InputPartition]:
        # Spark takes no partitions for one that nothing was said about.
        return [SnapshotPartition(task) for task in plan_batch(self._options)] or [SnapshotPartition(None)]


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """All but `read` runs in one process of the driver, as long as the query does."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._made: SnapshotStream | None = None

    @property
    def _stream(self) -> SnapshotStream:
        # On first use: the readers that travel to the executors have none.
        if self._made is None:
            self._made = SnapshotStream(self._options)
        return self._made

    @told
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._stream.initial().as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One of the limits: Spark knows no two at a time. It says that limits hold, and the options say which."""
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
        # The very same, or else Spark runs an empty batch.
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
