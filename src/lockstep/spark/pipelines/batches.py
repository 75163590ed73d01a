"""What a step does with a batch: call the function, stage its rows on the executors, commit.

The rows of a batch are read once, unless a message makes the function fail. The batch is then run again without those
that do, which are found by halving it (rejects.py).
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lockstep.errors import InvalidRequest, LockstepError, StepFailed
from lockstep.spark import writer
from lockstep.spark.database import Access
from lockstep.spark.pipelines.committing import Outcome, Place, commit, is_committed, sink_options
from lockstep.spark.pipelines.pipeline import Step, frame_of
from lockstep.spark.pipelines.rejects import ERROR, Rejected, Search, cached, cause_of, is_of_machines, may_be_of_rows
from lockstep.spark.rows import Incoming
from lockstep.spark.schema import DATA
from lockstep.spark.sink_schema import COLUMNS, GIVEN_ANEW, check_schema
from lockstep.spark.writer_options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

MISFIT = "the payload does not fit the payload_schema"
_BESIDE = (ERROR, "message_id", "seq")
"""What is staged beside what a message has."""
_RESULT = "staged binary, message_id string, error string"
_RESULT_ARROW = pa.schema([("staged", pa.binary()), ("message_id", pa.string()), ("error", pa.string())])


class Batches:
    """The batches of one step, under one query."""

    def __init__(self, step: Step, access: Access) -> None:
        self._step = step
        self._access = access

    def run(self, frame: DataFrame, place: Place) -> Outcome | None:
        """Work on a batch and commit it; None if that was done before. Raises StepFailed, or what the database says."""
        if is_committed(self._access, place):
            return None
        if place.batch_id == 0 and not frame.rdd.getNumPartitions():
            # Spark begins every query with a batch, whether there is something or not. Its stream has said nothing yet.
            return Outcome()
        try:
            outcome = self._outcome(self._with_traces(frame), place)
            commit(self._step, self._access, place, outcome)
        except (StepFailed, InvalidRequest) as error:
            raise StepFailed(self._said(place, error.message)) from error
        except LockstepError as error:
            # What the database says stays what it is: Unavailable, QueueFull, LeaseLost.
            error.message = self._said(place, error.message)
            error.args = (error.message,)
            raise
        return outcome

    def _said(self, place: Place, what: str) -> str:
        return (
            f"step {self._step.name!r} of pipeline {self._step.pipeline!r} failed in batch {place.batch_id}: {what}; "
            "nothing of the batch was written, and the step goes on there when it is run again"
        )

    def _outcome(self, frame: DataFrame, place: Place) -> Outcome:
        """Spark on one machine tries a task once: a worker that the system ended would end the step."""
        attempts_max = self._access.config().pipeline_batch_attempts_max if self._step.sinks else 1
        for attempt in range(1, attempts_max + 1):
            try:
                return self._attempted_outcome(frame, place)
            except Exception as error:
                if not is_of_machines(error):
                    raise
                failed = _failed(error)
                if attempt == attempts_max:
                    raise failed from error
                what = "batch %d of step %r is tried again: %s"
                _log.warning(what, place.batch_id, self._step.full_name, failed.message)
        raise AssertionError("pipeline_batch_attempts_max is at least 1")

    def _attempted_outcome(self, frame: DataFrame, place: Place) -> Outcome:
        try:
            return self._stage(self._fitting(frame), place)
        except Exception as error:
            if isinstance(error, LockstepError) or is_of_machines(error):
                raise
            if not may_be_of_rows(error):
                raise _failed(error) from error
            return self._without_bad(frame, place, error)

    def _without_bad(self, frame: DataFrame, place: Place, error: BaseException) -> Outcome:
        """The batch without the messages that make it fail."""
        with ExitStack() as caches:
            batch = caches.enter_context(cached(frame))
            bad = self._misfits(batch)
            good = batch if self._step.payload_schema is None else batch.where(f"{DATA} is not null")
            if not bad or self._fails(good):
                bad += self._search(good)
            good = caches.enter_context(cached(good.where(~good["message_id"].isin([one.message_id for one in bad]))))
            try:
                outcome = self._stage(good, place)
            except Exception as again:
                if is_of_machines(again):
                    raise
                raise StepFailed(f"no single message makes it fail: {cause_of(again)}") from error
            return Outcome(outcome.staged, [*bad, *outcome.rejected], rows_in=batch.count())

    def _search(self, frame: DataFrame) -> Sequence[Rejected]:
        try:
            return Search(self._attempt, frame, rejects_max=self._step.rejects_max).find()
        except Exception as error:
            if isinstance(error, LockstepError) or is_of_machines(error):
                raise
            raise _failed(error) from error

    def _fails(self, frame: DataFrame) -> bool:
        try:
            self._attempt(frame)
        except Exception as error:
            if not may_be_of_rows(error):
                raise
            return True
        return False

    def _misfits(self, frame: DataFrame) -> list[Rejected]:
        if self._step.payload_schema is None:
            return []
        rows = frame.where(f"{DATA} is null").select("message_id").collect()
        return [Rejected(row[0], f"{MISFIT} {self._step.payload_schema}") for row in rows]

    def _fitting(self, frame: DataFrame) -> DataFrame:
        """The frame, if all its payloads fit. To raise in the midst of a batch costs nothing where all do."""
        if self._step.payload_schema is None:
            return frame
        from pyspark.sql import functions as F  # noqa: N812

        return frame.where(F.col(DATA).isNotNull() | F.raise_error(F.lit(MISFIT)).cast("boolean"))

    def _with_traces(self, frame: DataFrame) -> DataFrame:
        """Messages without a trace begin one, which has their id."""
        from pyspark.sql import functions as F  # noqa: N812

        return frame.withColumn("trace_id", F.coalesce("trace_id", "message_id"))

    def _attempt(self, frame: DataFrame) -> None:
        """All that a batch is, but for the order and the database."""
        rows = self._rows(frame)
        if rows is not None:
            rows.mapInArrow(self._task(None), _RESULT).count()

    def _stage(self, frame: DataFrame, place: Place) -> Outcome:
        rows = self._rows(frame)
        if rows is None:
            return Outcome()
        if self._step.sinks and self._step.order:
            rows = rows.repartition("partition").sortWithinPartitions("seq")
        staged: list[writer.Staged] = []
        rejected: dict[str, Rejected] = {}
        for one in rows.mapInArrow(self._task(place), _RESULT).collect():
            if one.staged is not None:
                staged.append(pickle.loads(one.staged))
            else:
                rejected.setdefault(one.message_id, Rejected(one.message_id, one.error))
        return Outcome(staged, list(rejected.values()))

    def _rows(self, frame: DataFrame) -> DataFrame | None:
        """What the function makes of the frame, ready to be staged; None if it has seen to it itself."""
        step = self._step
        try:
            result = frame_of(step.function(frame), step)
        except Exception as error:
            # A function without a sink may have had effects: it is not tried on parts of the batch.
            if step.sinks and (may_be_of_rows(error) or is_of_machines(error)):
                raise
            raise _failed(error) from error
        return None if result is None else self._prepared(result)

    def _prepared(self, rows: DataFrame) -> DataFrame:
        step = self._step
        if not step.sinks:
            return rows.select([name for name in ("message_id", ERROR) if name in rows.columns] or rows.columns[:1])
        _check_columns(step, rows)
        dropped = [DATA] if step.dedupe else [DATA, "transaction_id"]
        rows = rows.drop(*dropped)
        fields = [(field.name, field.dataType.simpleString()) for field in rows.schema.fields]
        check_schema(fields, queue=None if step.routed else step.sinks[0], ignore_unknown=True)
        return rows.select([name for name in rows.columns if name in COLUMNS or name in _BESIDE])

    def _task(self, place: Place | None) -> StagingTask:
        options = sink_options(self._step, self._access)
        return StagingTask(options, place, sinks=self._step.sinks, routed=self._step.routed)


def _failed(error: BaseException) -> StepFailed:
    """What went wrong in the function itself."""
    if isinstance(error, StepFailed):
        return error
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    of_spark = isinstance(error, PySparkException | Py4JJavaError | LockstepError)
    return StepFailed(cause_of(error) if of_spark else f"{type(error).__name__}: {error}")


def _check_columns(step: Step, rows: DataFrame) -> None:
    """Raises StepFailed if the function has dropped what is carried along."""
    wanted = ["partition", *(["trace_id"] if step.traces else []), *(["seq"] if step.order else [])]
    missing = [name for name in wanted if name not in rows.columns]
    if missing:
        ways = {"trace_id": "traces=False", "seq": "order=False"}
        instead = [ways[name] for name in missing if name in ways]
        raise StepFailed(
            f"its function dropped the column {', '.join(missing)}: keep it"
            + (f", or define the step with {', '.join(instead)}" if instead else "")
        )
    unknown = [name for name in rows.columns if name not in COLUMNS and name not in (*GIVEN_ANEW, *_BESIDE, DATA)]
    if unknown:
        raise StepFailed(
            f"its function adds the column {', '.join(unknown)}, which a message does not have: drop it, or put it "
            "into the payload with to_json(...)"
        )
    if ERROR in rows.columns and "message_id" not in rows.columns:
        raise StepFailed(f"its function marks rows in {ERROR}, and dropped the column message_id: keep it")


@dataclass
class StagingTask:
    """What a task does with the rows of a step: those that are marked are told to the driver, the others are staged.

    Without a place they are only checked.
    """

    options: WriteOptions
    place: Place | None
    sinks: Sequence[str]
    routed: bool
    rejected: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        good = (rows for rows in map(self._unmarked, batches) if rows.num_rows)
        first = next(good, None)
        staged = None
        if first is not None and self.sinks:
            staged = self._stage(chain([first], good))
        else:
            for _ in good:
                pass
        columns = zip(*self.rejected, strict=True) if self.rejected else ((), ())
        message_ids, errors = (list(column) for column in columns)
        said = [None] * len(message_ids), message_ids, errors
        if staged is not None:
            said[0].append(pickle.dumps(staged))  # type: ignore[arg-type]
            message_ids.append(None)
            errors.append(None)
        yield pa.record_batch([pa.array(*one) for one in zip(said, _RESULT_ARROW.types, strict=True)], _RESULT_ARROW)

    def _unmarked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if ERROR not in rows.schema.names:
            return rows
        errors = rows.column(ERROR)
        if errors.null_count < len(errors):
            marked = rows.filter(errors.is_valid())
            self.rejected += zip(marked.column("message_id").to_pylist(), marked.column(ERROR).to_pylist(), strict=True)
            rows = rows.filter(errors.is_null())
        return rows.drop_columns([ERROR])

    def _stage(self, batches: Iterable[pa.RecordBatch]) -> writer.Staged | None:
        from pyspark import TaskContext

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        routed = map(self._routed, batches)
        if self.place is not None:
            return writer.stage(self.options, routed, sink=self.place.sink, batch_id=self.place.batch_id, task=task)
        incoming = Incoming(self.options.access.config(), queue=self.options.queue, task=task)
        for batch in routed:
            incoming.take(batch)
        return None

    def _routed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.routed:
            queues = rows.column("queue")
            known = pc.fill_null(pc.is_in(queues, value_set=pa.array(self.sinks)), False)
            if not pc.all(known).as_py():
                found = queues[pc.index(known, False).as_py()].as_py()
                raise InvalidRequest(f"column 'queue' is {found!r}, which is no sink: {', '.join(self.sinks)}")
        return rows
