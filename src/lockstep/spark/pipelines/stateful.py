"""Stateful steps: their function is called once, with streams, and what it returns runs as a streaming query. Spark
keeps its state in the checkpoint.

The result of a batch is staged and committed as in any step. The state of a batch is on disk before that: a batch that
Spark runs again starts with the state of the previous batch, and computes the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lockstep.errors import InvalidRequest, LockstepError, StepFailed
from lockstep.spark.database import Access
from lockstep.spark.jobs.options import source_options
from lockstep.spark.pipelines.batches import MISFIT, failure_of, staged_by, with_traces
from lockstep.spark.pipelines.committing import BatchDone, BatchOutcome, StepBatch, commit, is_committed, sink_options
from lockstep.spark.pipelines.diverting import ERROR, divert, diverting
from lockstep.spark.pipelines.parameters import call
from lockstep.spark.pipelines.pipeline import Step, frame_of
from lockstep.spark.pipelines.plans import times_read
from lockstep.spark.pipelines.side_inputs import SideFrames
from lockstep.spark.pipelines.tasks import StagingTask
from lockstep.spark.read.schema import DATA
from lockstep.spark.write.sink_schema import COLUMNS, GIVEN_ANEW, check_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ORDER = "_order_"
"""Prefix of the columns that order rows; they are not written."""
_STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_STATE_PARTITIONS = "spark.sql.shuffle.partitions"


class StatefulBatches:
    """The query of one stateful step, and the processing of its batches."""

    def __init__(self, step: Step, access: Access) -> None:
        self._step = step
        self._access = access
        self._sides = SideFrames(step.inputs, access)
        self._times_read: list[int] = []

    def frame(self, spark: SparkSession, where: Mapping[str, str]) -> DataFrame:
        """The computation of the query; `where` has options for the start of its sources. Raises StepFailed, which says
        that the step did not start."""
        try:
            rows = self._rows(spark, where)
        except LockstepError as error:
            step = self._step
            text = f"step {step.name!r} of pipeline {step.pipeline!r} cannot start: {error.message}"
            raise _said(error, text) from error
        self._times_read = times_read(rows)
        return rows

    def _rows(self, spark: SparkSession, where: Mapping[str, str]) -> DataFrame:
        step = self._step
        sides = self._sides.frames(spark)
        with diverting() as diverted:
            sources = [self._source(spark, one, where) for one in (step.sources if step.source_names else (None,))]
            try:
                result = frame_of(call(step, sources, sides), step)
            except LockstepError:
                raise
            except Exception as error:
                raise failure_of(error) from error
        assert result is not None
        rows = self._prepared(result)
        for bad in diverted:
            rows = rows.unionByName(bad, allowMissingColumns=True)
        return rows

    def _source(self, spark: SparkSession, source: str | None, where: Mapping[str, str]) -> DataFrame:
        """A stream of messages; messages whose payload does not fit leave it at once."""
        from pyspark.sql import functions as sf

        options = {**source_options(self._access), **self._step.source_options(source, where=where)}
        frame = with_traces(spark.readStream.format("lockstep").options(**options).load())
        schema = self._step.payload_schema_of(source)
        if schema is None:
            return frame
        return divert(frame, sf.col(DATA).isNull(), sf.lit(f"{MISFIT} {schema}"))

    def _prepared(self, rows: DataFrame) -> DataFrame:
        """The columns to write, and those that order rows."""
        from pyspark.sql import functions as sf

        step = self._step
        _check_columns(step, rows.columns)
        order = step.order_by or (("seq",) if "seq" in rows.columns else ())
        fields = [(one.name, one.dataType.simpleString()) for one in rows.schema.fields]
        written = [name for name in COLUMNS if name in rows.columns and (step.dedupe or name != "transaction_id")]
        if not step.routed and "queue" in written:
            written.remove("queue")
        check_schema(
            [one for one in fields if one[0] in written],
            queue=None if step.routed else step.sinks[0],
            ignore_unknown=False,
        )
        columns = [
            sf.coalesce(sf.col(name), sf.lit("Default")).alias(name) if name == "partition" else sf.col(name)
            for name in written
        ]
        return rows.select(*columns, *[sf.col(name).alias(f"{_ORDER}{place}") for place, name in enumerate(order)])

    def run(self, frame: DataFrame, place: StepBatch) -> BatchDone:
        """Process a batch and commit it, unless that was done before. Raises StepFailed, or the database's errors."""
        try:
            if is_committed(self._access, place):
                # Its rows are known, but the next batch needs its state and its watermark.
                frame.write.format("noop").mode("overwrite").save()
                return BatchDone()
            outcome = self._staged(frame, place)
            if place.batch_id > 0 or outcome.staged or outcome.rejected:
                return commit(self._step, self._access, place, outcome)
            # The first batch of a query may be empty, before its streams have published anything.
            return BatchDone(rows_in=None)
        except Exception as error:
            raise self._failed(error, place) from error

    def _staged(self, frame: DataFrame, place: StepBatch) -> BatchOutcome:
        order = [name for name in frame.columns if name.startswith(_ORDER)]
        rows = frame.repartition("partition")
        if order:
            rows = rows.sortWithinPartitions(*order).drop(*order)
        options = sink_options(self._step, self._access)
        task = StagingTask(options, place, sinks=self._step.sinks, routed=self._step.routed)
        found = staged_by(rows, task)
        return BatchOutcome(found.staged, found.rejected)

    def _failed(self, error: Exception, place: StepBatch) -> LockstepError:
        ours = error if isinstance(error, LockstepError) else failure_of(error)
        text = (
            f"step {self._step.name!r} of pipeline {self._step.pipeline!r} failed in batch {place.batch_id}: "
            f"{ours.message}; nothing of the batch was written, and the step goes on there when it is run again"
        )
        return _said(ours, text)

    def rows_in(self, progress: Mapping[str, Any]) -> int:
        """Number of messages of a batch. Spark counts the messages of a source once per occurrence in the plan."""
        told = [int(source["numInputRows"]) for source in progress["sources"]]
        return sum(rows // times for rows, times in zip(told, self._times_read, strict=True))

    @property
    def is_stale(self) -> bool:
        """Whether a side input is due to be read again, which requires a restart of the query."""
        return self._sides.is_due()

    def close(self) -> None:
        self._sides.close()


def _said(error: LockstepError, text: str) -> LockstepError:
    """An error with more context. The database's errors keep their class: Unavailable, QueueFull."""
    if isinstance(error, StepFailed | InvalidRequest):
        return StepFailed(text)
    error.message, error.args = text, (text,)
    return error


def _check_columns(step: Step, columns: Sequence[str]) -> None:
    """Raises StepFailed if the result cannot be written."""
    wanted = ["partition", "payload", *(["queue"] if step.routed else []), *step.order_by]
    missing = [name for name in wanted if name not in columns]
    if missing:
        raise StepFailed(
            f"its function returns no column {', '.join(missing)}: it has {', '.join(columns)}. A result needs "
            "partition, the key by which it is ordered, and payload, such as to_json(struct(...))"
        )
    if ERROR in columns:
        raise StepFailed(f"its function marks rows in {ERROR}: in a stateful step use reject(), before there is state")
    known = {*COLUMNS, *GIVEN_ANEW, DATA, *step.order_by}
    unknown = [name for name in columns if name not in known]
    if unknown:
        raise StepFailed(
            f"its function adds the column {', '.join(unknown)}, which a message does not have: drop it, or put it "
            "into the payload with to_json(...)"
        )


@contextmanager
def state_settings(spark: SparkSession, step: Step) -> Iterator[None]:
    """Spark settings with which the query of a stateful step starts. The query and its checkpoint keep them."""
    given: dict[str, str] = {}
    if _STATE_STORE not in spark.conf.getAll:
        given[_STATE_STORE] = _ROCKSDB
    if step.state_partitions is not None:
        given[_STATE_PARTITIONS] = str(step.state_partitions)
    before = {name: spark.conf.getAll.get(name) for name in given}
    try:
        for name, value in given.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)
