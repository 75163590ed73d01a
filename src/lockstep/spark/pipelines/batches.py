"""How a step processes a batch: call the function, stage its rows on the executors, commit.

The rows of a batch are read once, unless a message makes the function fail. The batch is then run again with its Python
functions guarded (guarding.py), and the messages on which they raise are left out of the result. Where this is not
possible, they are found in a separate pass or by halving the batch (rejects.py), and the batch is run without them.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lockstep.errors import InvalidRequest, LockstepError, StepFailed
from lockstep.spark.database import Access
from lockstep.spark.failures import explain, is_of_machines
from lockstep.spark.jobs.options import source_options
from lockstep.spark.pipelines.committing import BatchDone, BatchOutcome, StepBatch, commit, is_committed, sink_options
from lockstep.spark.pipelines.counting import RowCount
from lockstep.spark.pipelines.guarding import described, first_of_each, guarded
from lockstep.spark.pipelines.parameters import call
from lockstep.spark.pipelines.pipeline import Step, frame_of
from lockstep.spark.pipelines.plans import MARK, leaves_in_place, operators_over_batch
from lockstep.spark.pipelines.rejects import (
    ERROR,
    WHOLLY_FAILED_MIN,
    Rejected,
    Search,
    cached,
    cause_of,
    check_rejects,
    may_be_of_rows,
)
from lockstep.spark.pipelines.side_inputs import SideFrames
from lockstep.spark.pipelines.sources import source_queues
from lockstep.spark.pipelines.tasks import RESULT, CheckingTask, StagingTask, id_tails
from lockstep.spark.read.schema import DATA
from lockstep.spark.restarting import may_pass
from lockstep.spark.write import writer
from lockstep.spark.write.sink_schema import COLUMNS, GIVEN_ANEW, check_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

MISFIT = "the payload does not fit the payload_schema"
_BESIDE = (ERROR, "message_id", "seq")
"""Columns that are staged besides those of a message."""


class Batches:
    """The batches of one step, under one query."""

    def __init__(self, step: Step, access: Access) -> None:
        self._step = step
        self._access = access
        self._sides = SideFrames(step.inputs, access)
        self._traced = access.config().tracing
        self._expects_bad = False
        """The last batch had messages on which the function raises, so the next one probably has some, too."""
        self._needs_cache = False
        """Rows of a batch could not be staged while it was being found which of them must not be."""

    def frame(self, spark: SparkSession, where: Mapping[str, str]) -> DataFrame:
        """The stream of messages; `where` has options for its start. Raises StepFailed if the step needs more than one
        batch of it, InvalidOption if its payload_schema is invalid."""
        source = {**source_options(self._access), **self._step.source_options(where=where)}
        frame = spark.readStream.format("lockstep").options(**source).load()
        self._try_on_nothing(spark, frame)
        return frame

    def _try_on_nothing(self, spark: SparkSession, stream: DataFrame) -> None:
        """Call the function with an empty batch. A failure is reported with the first batch, because the function may
        need messages. A function without a sink is not called: it may have side effects, or count its calls."""
        if not self._step.sinks:
            return
        nothing = with_traces(spark.createDataFrame([], stream.schema)).alias(MARK)
        try:
            result = call(self._step, [nothing], self._sides.frames(spark))
        except Exception as error:
            _log.debug("step %s fails without messages: %s", self._step.full_name, error)
            return
        check_stateless(self._step, result)

    @property
    def is_stale(self) -> bool:
        """Whether the query must be restarted to read its side inputs: no, each batch reads them."""
        return False

    def rows_in(self, progress: Mapping[str, Any]) -> int:
        """Number of messages of a batch, as counted by Spark."""
        return int(progress["numInputRows"])

    def close(self) -> None:
        self._sides.close()

    def run(self, frame: DataFrame, place: StepBatch) -> BatchDone:
        """Process a batch and commit it, unless that was done before. Raises StepFailed, or the database's errors."""
        if is_committed(self._access, place):
            return BatchDone()
        if place.batch_id == 0 and not frame.rdd.getNumPartitions():
            # Spark starts every query with a batch, even an empty one, before which its stream has published nothing.
            return BatchDone()
        try:
            with self._spanning(frame, place):
                outcome = self._outcome(with_traces(frame), place)
                return commit(self._step, self._access, place, outcome)
        except (StepFailed, InvalidRequest) as error:
            raise StepFailed(self._said(place, error.message)) from error
        except LockstepError as error:
            # The database's errors keep their class: Unavailable, QueueFull, LeaseLost.
            error.message = self._said(place, error.message)
            error.args = (error.message,)
            raise

    def _spanning(self, frame: DataFrame, place: StepBatch) -> AbstractContextManager[None]:
        if not self._traced:
            return nullcontext()
        from lockstep.spark.pipelines.tracing import batch_span

        return batch_span(self._step, frame, place)

    def _said(self, place: StepBatch, what: str) -> str:
        return (
            f"step {self._step.name!r} of pipeline {self._step.pipeline!r} failed in batch {place.batch_id}: {what}; "
            "nothing of the batch was written, and the step continues there when it is run again"
        )

    def _outcome(self, frame: DataFrame, place: StepBatch) -> BatchOutcome:
        """On a single machine Spark tries a task once, so a worker ended by the system would end the step."""
        attempts_max = self._access.config().pipeline_batch_attempts_max if self._step.sinks else 1
        for attempt in range(1, attempts_max + 1):
            try:
                return self._attempted_outcome(frame, place)
            except Exception as error:
                if not is_of_machines(error):
                    raise
                failed = failure_of(error)
                if attempt == attempts_max:
                    raise failed from error
                what = "batch %d of step %r is tried again: %s"
                _log.warning(what, place.batch_id, self._step.full_name, failed.message)
        raise AssertionError("pipeline_batch_attempts_max is at least 1")

    def _attempted_outcome(self, frame: DataFrame, place: StepBatch) -> BatchOutcome:
        if self._expects_bad:
            outcome = self._guarded_outcome(frame, place)
            if outcome is not None:
                return outcome
        rows = RowCount(self._sources())
        try:
            outcome = self._stage(self._fitting(rows.of(frame)), place)
            return replace(outcome, read=rows.get())
        except Exception as error:
            if isinstance(error, LockstepError) or is_of_machines(error):
                raise
            if not may_be_of_rows(error):
                raise failure_of(error) from error
            return self._without_bad(frame, place, error)

    def _without_bad(self, frame: DataFrame, place: StepBatch, error: BaseException) -> BatchOutcome:
        """The result of the batch without the messages that make it fail."""
        outcome = None if self._expects_bad else self._guarded_outcome(frame, place)
        if outcome is not None:
            return outcome
        with ExitStack() as caches:
            batch = caches.enter_context(cached(frame))
            bad = self._misfits(batch)
            good = self._good(batch)
            if not bad or self._fails(good):
                bad += self._found(good, place)
            rest = caches.enter_context(cached(_without(good, bad)))
            try:
                outcome = self._stage(rest, place)
            except Exception as again:
                if not may_be_of_rows(again):
                    raise
                more = self._search(rest, place)
                rest = caches.enter_context(cached(_without(rest, more)))
                bad += more
                outcome = self._staged_again(rest, place, error)
            return BatchOutcome(outcome.staged, [*bad, *outcome.rejected], _counted(batch))

    def _sources(self) -> Sequence[str]:
        if not self._step.by_pattern:
            return self._step.sources
        with self._access.connect() as connection:
            return list(source_queues(self._step, connection, self._access.config()))

    def _guarded_outcome(self, frame: DataFrame, place: StepBatch) -> BatchOutcome | None:
        """Run the batch with its functions guarded; for the other messages the result is the ordinary one. None if
        messages and results cannot be matched, because a row comes from several messages, or if the batch fails anyway.
        """
        if not self._step.sinks or self._step.per_batch:
            return None
        ways = [self._guarded_in_cache] if self._needs_cache else [self._guarded_in_one, self._guarded_in_cache]
        for way in ways:
            try:
                outcome = way(frame, place)
            except Exception as error:
                if not may_be_of_rows(error):
                    raise
                outcome = None
            if outcome is not None:
                return outcome
            self._needs_cache = True
        return None

    def _guarded_in_one(self, frame: DataFrame, place: StepBatch) -> BatchOutcome | None:
        """In one pass that stages the rows while it finds the messages on which functions raise. A row of theirs has no
        payload, as a rule, and is not staged. None if one of them was."""
        rows = RowCount(self._sources(), misfits=self._step.payload_schema is not None)
        with guarded(frame.sparkSession) as noted:
            try:
                made = self._rows(self._good(rows.of(frame)))
            except StepFailed:
                return None
            if made is None or "message_id" not in made.columns:
                return None
            kept = self._written(self._in_order(made), keeps_id=True)
            staged = staged_by(kept, replace(self._stages(place), tells=True))
        raised = [Rejected(*one) for one in first_of_each(noted.value)]
        bad, read = _first_of_each(raised, staged.refused), rows.get()
        if not read or not staged.has_none_of([one.message_id for one in bad]):
            return None
        misfits = self._misfits(frame) if rows.misfits else []
        self._check_found(bad, sum(read.values()) - len(misfits), place)
        self._expects_bad = bool(bad)
        return BatchOutcome(staged.staged, [*misfits, *_first_of_each(bad, staged.rejected)], read)

    def _guarded_in_cache(self, frame: DataFrame, place: StepBatch) -> BatchOutcome | None:
        """In two passes: what the functions make of the batch is kept until it is known which rows must not be
        staged."""
        with ExitStack() as caches, guarded(frame.sparkSession) as noted:
            batch = caches.enter_context(cached(frame))
            read, misfits = _counted(batch), self._misfits(batch)
            try:
                made = self._rows(self._good(batch))
            except StepFailed:
                return None
            if made is None or "message_id" not in made.columns:
                return None
            kept = caches.enter_context(cached(made))
            kept.count()
            raised = [Rejected(*one) for one in first_of_each(noted.value)]
            self._check_found(raised, sum(read.values()) - len(misfits), place)
            bad, outcome = self._staged_without(kept, raised, place)
            if len(first_of_each(noted.value)) > len(raised):
                return None  # some of it was lost and recomputed, with a different result
            self._expects_bad = bool(bad)
            return BatchOutcome(outcome.staged, [*misfits, *bad, *outcome.rejected], read)

    def _staged_without(
        self, kept: DataFrame, bad: Sequence[Rejected], place: StepBatch
    ) -> tuple[Sequence[Rejected], BatchOutcome]:
        """Stage the results of the other messages. Messages whose rows the sink refuses are bad as well."""
        try:
            return bad, self._stage_rows(_without(kept, bad), place)
        except Exception as error:
            if not may_be_of_rows(error):
                raise
            refused = self._refused(_without(kept, bad))
            if not refused:
                raise
        bad = [*bad, *refused]
        self._check_found(bad, kept.count(), place)
        return bad, self._stage_rows(_without(kept, bad), place)

    def _staged_again(self, frame: DataFrame, place: StepBatch, error: BaseException) -> BatchOutcome:
        try:
            return self._stage(frame, place)
        except Exception as again:
            if is_of_machines(again):
                raise
            raise StepFailed(f"no single message makes it fail: {cause_of(again)}") from error

    def _found(self, frame: DataFrame, place: StepBatch) -> Sequence[Rejected]:
        """The messages that make a failing frame fail: all at once if possible."""
        found = self._isolated(frame)
        if not found:
            return self._search(frame, place)
        self._check_found(found, frame.count(), place)
        return found

    def _check_found(self, found: Sequence[Rejected], count: int, place: StepBatch) -> None:
        """Raises StepFailed if all messages fail, or too many of them; returns how many do."""
        if not found:
            return
        last = found[-1].error
        if len(found) == count >= WHOLLY_FAILED_MIN:
            raise StepFailed(f"every message of the batch fails, one of them with: {last}")
        check_rejects(len(found), self._step.rejects_max, last)
        what = "%d of %d messages of batch %d make step %r fail, one of them with: %s"
        _log.warning(what, len(found), count, place.batch_id, self._step.full_name, last)

    def _isolated(self, frame: DataFrame) -> list[Rejected]:
        """The messages on which Python functions raise, and those that the sink refuses, found in one pass. None if the
        step cannot be run in this way."""
        with guarded(frame.sparkSession) as noted:
            try:
                rows = self._rows(frame)
            except StepFailed:
                return []
        refused: list[Rejected] = []
        if rows is not None and "message_id" in rows.columns:
            try:
                refused = self._refused(rows)
            except Exception as error:
                if not may_be_of_rows(error):
                    raise
        both = [*noted.value, *((one.message_id, one.error) for one in refused)]
        return [Rejected(*one) for one in first_of_each(both)]

    def _refused(self, rows: DataFrame) -> list[Rejected]:
        """The messages whose rows the sink refuses."""
        results = rows.mapInArrow(self._checks(isolates=True), RESULT).collect()
        return [Rejected(*one) for one in first_of_each([(one.message_id, one.error) for one in results])]

    def _search(self, frame: DataFrame, place: StepBatch) -> Sequence[Rejected]:
        what = "looking one by one for the messages of batch %d that make step %r fail, which takes seconds for each"
        _log.warning(what, place.batch_id, self._step.full_name)
        try:
            return Search(self._attempt, frame, rejects_max=self._step.rejects_max).find()
        except Exception as error:
            if isinstance(error, LockstepError) or is_of_machines(error):
                raise
            raise failure_of(error) from error

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

    def _good(self, frame: DataFrame) -> DataFrame:
        """The messages whose payload matches the schema."""
        return frame if self._step.payload_schema is None else frame.where(f"{DATA} is not null")

    def _fitting(self, frame: DataFrame) -> DataFrame:
        """The frame, if all its payloads fit. Raising in the middle of a batch costs nothing if they do."""
        if self._step.payload_schema is None:
            return frame
        from pyspark.sql import functions as F  # noqa: N812

        return frame.where(F.col(DATA).isNotNull() | F.raise_error(F.lit(MISFIT)).cast("boolean"))

    def _attempt(self, frame: DataFrame) -> None:
        """Everything that a batch does, except for ordering and the database."""
        rows = self._rows(frame)
        if rows is not None:
            rows.mapInArrow(self._checks(isolates=False), RESULT).count()

    def _stage(self, frame: DataFrame, place: StepBatch) -> BatchOutcome:
        rows = self._rows(frame)
        return BatchOutcome() if rows is None else self._stage_rows(rows, place)

    def _stage_rows(self, rows: DataFrame, place: StepBatch) -> BatchOutcome:
        found = staged_by(self._written(self._in_order(rows)), self._stages(place))
        return BatchOutcome(found.staged, found.rejected)

    def _in_order(self, rows: DataFrame) -> DataFrame:
        """The rows of each partition in the order of their seqs. A batch is read in that order, task after task, and is
        pushed so: rows that are where they were read need no sorting. What is leased is in no order of tasks."""
        step = self._step
        if not step.sinks or not step.order or (step.group is None and leaves_in_place(rows, "seq")):
            return rows
        return rows.repartition("partition").sortWithinPartitions("seq")

    def _written(self, rows: DataFrame, *, keeps_id: bool = False) -> DataFrame:
        """Without the columns that no task needs: each of them is carried from Java to Python."""
        step = self._step
        dropped = {"seq"} if step.sinks else set()
        if not keeps_id and ERROR not in rows.columns:
            dropped.add("message_id")
        if not step.dedupe:
            dropped.add("transaction_id")
        if not step.routed:
            dropped.add("queue")
        kept = [name for name in rows.columns if name not in dropped]
        return rows.select(kept) if kept else rows

    def _rows(self, frame: DataFrame) -> DataFrame | None:
        """The function's result for the frame, ready to be staged; None if the function has processed the frame
        itself.
        """
        step = self._step
        try:
            result = frame_of(call(step, [frame.alias(MARK)], self._sides.frames(frame.sparkSession)), step)
        except Exception as error:
            # A function without a sink may have had side effects, so it is not tried on parts of the batch.
            if step.sinks and (may_be_of_rows(error) or is_of_machines(error)):
                raise
            raise failure_of(error) from error
        if result is None:
            return None
        check_stateless(step, result)
        return self._prepared(result)

    def _prepared(self, rows: DataFrame) -> DataFrame:
        step = self._step
        if not step.sinks:
            return rows.select([name for name in ("message_id", ERROR) if name in rows.columns] or rows.columns[:1])
        _check_columns(step, rows)
        rows = rows.drop(DATA)
        fields = [(field.name, field.dataType.simpleString()) for field in rows.schema.fields]
        check_schema(fields, queue=None if step.routed else step.sinks[0], ignore_unknown=True)
        rows = rows.select([name for name in rows.columns if name in COLUMNS or name in _BESIDE])
        if not self._traced:
            return rows
        from lockstep.spark.pipelines.tracing import carrying_rows

        return carrying_rows(rows)

    def _stages(self, place: StepBatch) -> StagingTask:
        return StagingTask(sink_options(self._step, self._access), place, self._step.sinks, self._step.routed)

    def _checks(self, *, isolates: bool) -> CheckingTask:
        return CheckingTask(sink_options(self._step, self._access), self._step.sinks, self._step.routed, isolates)


def _first_of_each(*found: Iterable[Rejected]) -> list[Rejected]:
    """Each message once, as it was found first."""
    first: dict[str, Rejected] = {}
    for one in chain.from_iterable(found):
        first.setdefault(one.message_id, one)
    return list(first.values())


def _without(frame: DataFrame, bad: Sequence[Rejected]) -> DataFrame:
    # As a single string: a column for each of thousands of ids would take Python longer than Spark needs for the batch.
    ids = ",".join(f"'{one.message_id}'" for one in bad)
    return frame.where(f"message_id not in ({ids})") if bad else frame


def _counted(frame: DataFrame) -> dict[str, int]:
    """The number of messages of each queue."""
    return dict(frame.groupBy("queue").count().collect())


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What the tasks say of the rows of a batch."""

    staged: Sequence[writer.Staged]
    rejected: Sequence[Rejected]
    """Those that are marked."""
    refused: Sequence[Rejected] = ()
    """Those without a payload, where tasks tell of them."""
    ids: Sequence[bytes | None] = ()
    """Of each task that tells them, the messages whose rows it has staged, as `tasks.id_tails` says."""

    def has_none_of(self, message_ids: Sequence[str]) -> bool:
        """Whether no row of these messages is staged, as far as that can be told."""
        if not message_ids:
            return True
        if any(one is None for one in self.ids):
            return False
        found = np.concatenate([np.frombuffer(one, np.uint64) for one in self.ids if one is not None] or [_NO_IDS])
        wanted = id_tails(pa.array(message_ids, pa.string()))
        return wanted is not None and not np.isin(np.frombuffer(wanted, np.uint64), found).any()


_NO_IDS = np.zeros(0, np.uint64)


def staged_by(rows: DataFrame, task: StagingTask) -> StagedRows:
    """Stage rows on the executors, and collect the tasks' reports."""
    staged: list[writer.Staged] = []
    rejected: dict[str, Rejected] = {}
    refused: dict[str, Rejected] = {}
    ids: list[bytes | None] = []
    for one in rows.mapInArrow(task, RESULT).collect():
        if one.staged is not None:
            staged.append(pickle.loads(one.staged))
            if task.tells:
                ids.append(one.ids)
        else:
            found = refused if one.is_refused else rejected
            found.setdefault(one.message_id, Rejected(one.message_id, one.error))
    return StagedRows(staged, list(rejected.values()), list(refused.values()), ids)


def with_traces(frame: DataFrame) -> DataFrame:
    """Messages without a trace start one, whose id is the message id."""
    from pyspark.sql import functions as F  # noqa: N812

    return frame.withColumn("trace_id", F.coalesce("trace_id", "message_id"))


def failure_of(error: BaseException) -> LockstepError:
    """The cause of a failure: in the function itself, or in the database as seen by an executor."""
    if isinstance(error, StepFailed):
        return error
    if isinstance(error, Exception) and may_pass(explain(error)):
        return explain(error)
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    of_spark = isinstance(error, PySparkException | Py4JJavaError | LockstepError)
    return StepFailed(cause_of(error) if of_spark else described(error))


def check_stateless(step: Step, result: Any) -> None:
    """Raises StepFailed if the result of the function depends on how messages are grouped into batches."""
    from pyspark.sql import DataFrame

    if step.per_batch or not step.sinks or not isinstance(result, DataFrame):
        return
    found = operators_over_batch(result)
    if found:
        raise StepFailed(
            f"step {step.name!r} of pipeline {step.pipeline!r} uses {', '.join(found)}, which needs more messages than "
            "the one batch that it sees, so that its result would depend on how messages fall into batches: define it "
            "with stateful=True, or with per_batch=True if a result for each batch is meant"
        )


def _check_columns(step: Step, rows: DataFrame) -> None:
    """Raises StepFailed if the function has dropped a carried column."""
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
