"""What tasks do with the rows of a step on the executors: stage them, or only check whether the sink accepts them."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from lockstep.errors import InvalidRequest, LockstepError
from lockstep.spark.pipelines.committing import StepBatch
from lockstep.spark.pipelines.guarding import in_halves
from lockstep.spark.pipelines.rejects import ERROR
from lockstep.spark.write import writer
from lockstep.spark.write.rows import Incoming
from lockstep.spark.write.write_options import WriteOptions

RESULT = "staged binary, message_id string, error string"
_RESULT_ARROW = pa.schema([("staged", pa.binary()), ("message_id", pa.string()), ("error", pa.string())])
_WHICH_ROW = re.compile(r" in row \d+ of task \d+")

Told = list[tuple[str, str]]
"""Message ids and the reasons of their rejection."""


@dataclass
class StagingTask:
    """Reports marked rows to the driver, and stages the others."""

    options: WriteOptions
    place: StepBatch
    sinks: Sequence[str]
    routed: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rejected: Told = []
        good = _unmarked(batches, rejected)
        first = next(good, None)
        staged = None
        if first is not None and self.sinks:
            staged = self._stage(chain([first], good))
        else:
            for _ in good:
                pass
        yield _result(rejected, staged)

    def _stage(self, batches: Iterable[pa.RecordBatch]) -> writer.Staged:
        checked = (_to_known_queues(batch, self.sinks) if self.routed else batch for batch in batches)
        place = self.place
        return writer.stage(self.options, checked, sink=place.sink, batch_id=place.batch_id, task=_task_number())


@dataclass
class CheckingTask:
    """Checks whether the sink accepts the rows. Raises the error of a refused row or, with `isolates`, reports all
    refused rows to the driver."""

    options: WriteOptions
    sinks: Sequence[str]
    routed: bool
    isolates: bool
    refused: Told = field(default_factory=list)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        incoming = Incoming.of(self.options, self.options.access.config(), task=_task_number())
        for rows in _unmarked(batches, []):
            if self.sinks:
                self._check(incoming, rows)
        yield _result(self.refused, None)

    def _check(self, incoming: Incoming, rows: pa.RecordBatch) -> None:
        def take(first: int, end: int) -> None:
            some = rows.slice(first, end - first)
            incoming.take(_to_known_queues(some, self.sinks) if self.routed else some)

        if not self.isolates:
            take(0, rows.num_rows)
            return
        _, bad = in_halves(take, 0, rows.num_rows, said=_said)
        if bad:
            ids = rows.column("message_id")
            self.refused += [(ids[row].as_py(), error) for row, error in bad]


def _said(error: Exception) -> str:
    """The sink's error without the row number: the row was alone."""
    if not isinstance(error, LockstepError):
        raise error
    return _WHICH_ROW.sub("", error.message)


def _unmarked(batches: Iterable[pa.RecordBatch], rejected: Told) -> Iterator[pa.RecordBatch]:
    """The rows that are not marked, if any; marked rows are recorded."""
    for rows in batches:
        if ERROR in rows.schema.names:
            errors = rows.column(ERROR)
            if errors.null_count < len(errors):
                marked = rows.filter(errors.is_valid())
                rejected += zip(marked.column("message_id").to_pylist(), marked.column(ERROR).to_pylist(), strict=True)
                rows = rows.filter(errors.is_null())
            rows = rows.drop_columns([ERROR])
        if rows.num_rows:
            yield rows


def _to_known_queues(rows: pa.RecordBatch, sinks: Sequence[str]) -> pa.RecordBatch:
    """Raises InvalidRequest if a row goes to a queue that is not a sink of the step."""
    queues = rows.column("queue")
    known = pc.fill_null(pc.is_in(queues, value_set=pa.array(sinks)), False)
    if not pc.all(known).as_py():
        found = queues[pc.index(known, False).as_py()].as_py()
        raise InvalidRequest(f"column 'queue' is {found!r}, which is no sink: {', '.join(sinks)}")
    return rows


def _result(told: Told, staged: writer.Staged | None) -> pa.RecordBatch:
    columns: list[list[bytes | str | None]] = [[None] * len(told), [one[0] for one in told], [one[1] for one in told]]
    if staged is not None:
        for column, value in zip(columns, (pickle.dumps(staged), None, None), strict=True):
            column.append(value)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _RESULT_ARROW.types, strict=True)]
    return pa.record_batch(arrays, _RESULT_ARROW)


def _task_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
