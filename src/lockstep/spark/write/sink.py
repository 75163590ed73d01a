"""The sink for Spark: writers of batches and of streams.

`write` runs on the executors, once for each attempt at a task, and `commit` on the driver, for a stream in a separate
process: it knows only what is in the tasks' messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from lockstep.errors import Conflict, InvalidOption, InvalidRequest
from lockstep.spark.failures import told
from lockstep.spark.write import writer
from lockstep.spark.write.sink_schema import check_schema
from lockstep.spark.write.write_options import WriteOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_UNKNOWN_BATCH = -1


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of `df.write.format("lockstep")`."""
    if overwrite:
        raise InvalidOption("a queue cannot be overwritten: use mode('append'), and `lockstep queue clear` to empty it")
    parsed = _checked(options, schema)
    if parsed.batch_id is not None and parsed.sink_id is None:
        raise InvalidOption("the option batchId needs the option sinkId, which says whose batch it is")
    if parsed.commit_stream is not None:
        raise InvalidOption("the option commitStream is for writeStream")
    return BatchWriter(parsed)


def stream_writer(options: Mapping[str, str], schema: StructType) -> StreamWriter:
    """The writer of `df.writeStream.format("lockstep")`. In output mode complete, each batch writes all results in one
    transaction; for each key the last one counts."""
    parsed = _checked(options, schema)
    if parsed.batch_id is not None:
        raise InvalidOption("the option batchId is for batch writes; a stream numbers its batches itself")
    return StreamWriter(parsed)


def _checked(options: Mapping[str, str], schema: StructType) -> WriteOptions:
    parsed = WriteOptions.of(options)
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    payloads = parsed.payloads.resolved()
    check_schema(
        fields,
        queue=parsed.queue,
        ignore_unknown=parsed.ignore_unknown,
        payload_format=payloads.format,
        order_by=parsed.order_by,
    )
    if payloads.format != "json":
        payloads.encoder()
    return replace(parsed, payloads=payloads)


@dataclass
class StagedMessage(WriterCommitMessage):
    """What a task reports to the commit."""

    staged: writer.Staged
    once: tuple[str, int] | None = None
    """The sink and its batch, if it must be written only once."""


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame completely or not at all; with a `sinkId`, once for each batch."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._own = f"batch/{uuid4()}"

    @told
    def write(self, iterator: Iterator[RecordBatch]) -> StagedMessage:
        task, query_id, batch_id = _task()
        once = None
        if self._options.sink_id is not None:
            given = batch_id if self._options.batch_id is None else self._options.batch_id
            if given is None:
                raise InvalidOption("the option sinkId needs a batch: give batchId, or write within foreachBatch")
            once = (_sink(self._options.sink_id, query_id), given)
        sink, number = once or (self._own, 0)
        return StagedMessage(writer.stage(self._options, iterator, sink=sink, batch_id=number, task=task), once)

    @told
    def commit(self, messages: list[Any]) -> None:
        staged, once = _gathered(_complete(messages))
        _tell(writer.commit(self._options, staged, batch=once))

    def abort(self, messages: list[Any]) -> None:
        writer.abort(self._options, _gathered(messages)[0])


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a stream exactly once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @told
    def write(self, iterator: Iterator[RecordBatch]) -> StagedMessage:
        task, query_id, batch_id = _task()
        if query_id is None and self._options.sink_id is None:
            raise InvalidRequest(
                "Spark does not say of which query this task is, so that a batch that comes again would not be known: "
                "give the option sinkId, and another one with every new checkpoint"
            )
        sink = _sink(self._options.sink_id, query_id)
        number = _UNKNOWN_BATCH if batch_id is None else batch_id
        return StagedMessage(
            writer.stage(self._options, iterator, sink=sink, batch_id=number, task=task), (sink, number)
        )

    @told
    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        staged, once = _gathered(_complete(messages))
        if once is not None:  # otherwise the batch has no tasks, and nothing to write
            _tell(writer.commit(self._options, staged, batch=(once[0], batchId)))

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: ARG002, N803
        writer.abort(self._options, _gathered(messages)[0])


def _task() -> tuple[int, str | None, int | None]:
    """The number of the task, and its query and batch, as far as Spark reports them."""
    context = TaskContext.get()
    if context is None:
        return 0, None, None
    batch_id = context.getLocalProperty(_BATCH_ID)
    return (
        context.partitionId(),
        context.getLocalProperty(_QUERY_ID) or None,
        int(batch_id) if batch_id else None,
    )


def _sink(sink_id: str | None, query_id: str | None) -> str:
    return "/".join(part for part in (sink_id, query_id) if part is not None)


def _tell(done: writer.CommittedBatch) -> None:
    """Log rows that are left out, because nothing else shows them."""
    if done.duplicates:
        rows = done.messages + done.duplicates
        _log.warning("%d of %d rows were left out: their partitions have their transaction ids", done.duplicates, rows)


def _complete(messages: list[Any]) -> list[Any]:
    if any(message is None for message in messages):
        raise Conflict("a task did not report what it has staged; nothing was written")
    return messages


def _gathered(messages: Iterable[Any]) -> tuple[Sequence[writer.Staged], tuple[str, int] | None]:
    """The reports of the tasks; a failed task has none."""
    told = [message for message in messages if isinstance(message, StagedMessage)]
    return [message.staged for message in told], next((message.once for message in told), None)
