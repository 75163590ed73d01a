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
from lockstep.spark.write.staging import canonical_uuids, uuid_bytes
from lockstep.spark.write.write_options import WriteOptions

RESULT = "staged binary, ids binary, message_id string, error string, is_refused boolean"
_RESULT_ARROW = pa.schema(
    [
        ("staged", pa.binary()),
        ("ids", pa.binary()),
        ("message_id", pa.string()),
        ("error", pa.string()),
        ("is_refused", pa.bool_()),
    ]
)
_NO_PAYLOAD = "column 'payload' is null; a JSON null is the text null"
_ID_LENGTH = 36
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
    tells: bool = False
    """It also tells of rows without a payload, which it leaves out, and of which messages it has staged rows."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rejected: Told = []
        refused: Told = []
        tails: list[bytes | None] = []
        good = _unmarked(batches, rejected)
        if self.tells:
            good = _noted(good, refused, tails)
        first = next(good, None)
        staged = None
        if first is not None and self.sinks:
            staged = self._stage(chain([first], good))
        else:
            for _ in good:
                pass
        known = [one for one in tails if one is not None]
        ids = b"".join(known) if len(known) == len(tails) else None
        yield _result(rejected, staged, refused=refused, ids=ids if self.tells else None)

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
        yield _result(self.refused, None, refused=[], ids=None)

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


def _noted(batches: Iterable[pa.RecordBatch], refused: Told, tails: list[bytes | None]) -> Iterator[pa.RecordBatch]:
    """The rows that have a payload. Their messages are noted, and so are those of the other rows."""
    for rows in batches:
        payloads = rows.column("payload")
        if payloads.null_count:
            refused += [(id_, _NO_PAYLOAD) for id_ in rows.column("message_id").filter(payloads.is_null()).to_pylist()]
            rows = rows.filter(payloads.is_valid())
        if rows.num_rows:
            tails.append(id_tails(rows.column("message_id")))
            yield rows


def id_tails(message_ids: pa.Array) -> bytes | None:
    """Of each id its last 64 bits, one after the other: two messages of a batch hardly ever share them. None if some id
    is not one of ours."""
    if message_ids.null_count or not pc.all(pc.equal(pc.binary_length(message_ids), _ID_LENGTH)).as_py():
        return None
    if not canonical_uuids(message_ids).all():
        return None
    return uuid_bytes(message_ids)[:, 8:].tobytes()


def _result(told: Told, staged: writer.Staged | None, *, refused: Told, ids: bytes | None) -> pa.RecordBatch:
    rows: list[tuple[bytes | None, bytes | None, str | None, str | None, bool]] = []
    rows += [(None, None, *one, False) for one in told]
    rows += [(None, None, *one, True) for one in refused]
    if staged is not None:
        rows.append((pickle.dumps(staged), ids, None, None, False))
    columns = zip(*rows, strict=True) if rows else [()] * len(_RESULT_ARROW)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _RESULT_ARROW.types, strict=True)]
    return pa.record_batch(arrays, _RESULT_ARROW)


def _task_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
