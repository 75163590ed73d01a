"""The readers of snapshot mode as Spark sees them: thin shells around what plans and reads, which needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

from lockstep.spark.batch import plan_batch
from lockstep.spark.failures import told
from lockstep.spark.offsets import Offset
from lockstep.spark.options import ReadOptions
from lockstep.spark.schema import DATA, arrow_schema, check_schema
from lockstep.spark.stream import SnapshotStream, Task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class Range(InputPartition):
    """A task, as Spark carries it."""

    def __init__(self, task: Task | None) -> None:
        self.task = task

    def __repr__(self) -> str:
        return f"Range({0 if self.task is None else len(self.task.segments)} segments)"


class _Reading:
    """What batch and stream readers have in common: it runs on the executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema, payload_type=options.payload_type)
        self._options = options
        self._schema: pa.Schema = arrow_schema(schema)
        if DATA in self._schema.names:
            from lockstep.spark.payloads import check_type

            check_type(self._schema.field(DATA).type)

    @told
    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        task: Task | None = partition.task
        if task is None:
            return
        # The driver, which plans, imports this module, too.
        from lockstep.spark.reader import SegmentReader

        options = self._options
        reader = SegmentReader(options.access, task.scope, self._schema, options.payload_mode, task.watch, task.witness)
        yield from reader.read(task.segments)


class BatchReader(_Reading, DataSourceReader):
    @told
    def partitions(self) -> Sequence[InputPartition]:
        # Spark takes no partitions for one that nothing was said about.
        return [Range(task) for task in plan_batch(self._options)] or [Range(None)]


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
        return [Range(task) for task in self._stream.plan(Offset.of(start), Offset.of(end))]

    @told
    def commit(self, end: dict[str, Any]) -> None:
        self._stream.commit(Offset.of(end))

    def stop(self) -> None:
        if self._made is not None:
            self._made.close()
