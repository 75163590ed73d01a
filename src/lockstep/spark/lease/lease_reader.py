"""The reader of lease mode for Spark: a thin wrapper around the stream, which does not need Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from lockstep.spark.failures import told
from lockstep.spark.lease.lease_stream import MESSAGES_MAX, LeasedReader, LeaseStream, LeaseTask
from lockstep.spark.options import ReadOptions
from lockstep.spark.read.schema import checked_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class LeasePartition(InputPartition):
    """A task in Spark's form."""

    def __init__(self, task: LeaseTask) -> None:
        self.task = task

    def __repr__(self) -> str:
        return f"Leased({len(self.task.segments)} segments)"


class LeaseReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """All methods except `read` run in one process of the driver, for as long as the query."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        # The registry's current schema, for all tasks.
        self._options = replace(options, payloads=options.payloads.resolved())
        self._schema = checked_schema(schema, options.types, is_json=options.payloads.format == "json")
        self._made: LeaseStream | None = None

    @property
    def _stream(self) -> LeaseStream:
        # Created on first use: the readers that travel to the executors have none.
        if self._made is None:
            self._made = LeaseStream(self._options)
        return self._made

    @told
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._stream.initial().as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.messages_max or MESSAGES_MAX)

    @told
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        messages_max = None if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_rows", None)
        return self._stream.latest(start, messages_max=messages_max).as_json()

    @told
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._stream.stop_at_now()

    @told
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        return [LeasePartition(task) for task in self._stream.plan(start, end)]

    @told
    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        task: LeaseTask = partition.task
        yield from LeasedReader.of(self._options, self._schema, task).read(task.segments)

    @told
    def commit(self, end: dict[str, Any]) -> None:
        self._stream.commit(end)

    def stop(self) -> None:
        if self._made is not None:
            self._made.close()
