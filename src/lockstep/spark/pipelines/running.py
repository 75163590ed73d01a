"""How steps become streaming queries: all of a pipeline in one session, or one alone, until they are stopped or done.

A query that is stopped finishes the batch that it is working on: whoever stops it waits, within a limit, for the gate
through which every batch goes. What Spark does not log of a batch then, it runs again, and the batch is known.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from lockstep.errors import InvalidOption, LockstepError
from lockstep.spark.database import Access
from lockstep.spark.failures import explain, explained_by_spark
from lockstep.spark.gate import Gate, Stopping
from lockstep.spark.jobs.options import source_options
from lockstep.spark.options import parse_duration
from lockstep.spark.pipelines.batches import Batches
from lockstep.spark.pipelines.committing import Outcome, Place
from lockstep.spark.pipelines.pipeline import Pipeline, Step
from lockstep.spark.pipelines.rejects import cause_of
from lockstep.spark.pipelines.status import CHECKPOINTS, SEEN_SECONDS, Record, checkpoint_of
from lockstep.spark.positions import find_queues
from lockstep.spark.session import check_spark, spark_session
from lockstep.spark.transactions import cursor_of

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS = 0.2
LOGGED_SECONDS = 10.0
"""How long Spark may take to note a batch that is done, when its query is stopped."""
TRIGGER = "1s"
_CREATE = "select 1 from lockstep.resolve($1, '{}'::text[], null)"
# Spark's own name for "the program was started by spark-submit".
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


@dataclass(frozen=True)
class RunOptions:
    """How a pipeline is run."""

    access: Access = field(default_factory=Access)
    once: bool = False
    """Until what is there is done, step by step."""
    checkpoints: str | None = None
    trigger: str = TRIGGER
    """How often a step looks for messages."""

    def __post_init__(self) -> None:
        self.trigger_seconds()

    def trigger_seconds(self) -> float:
        try:
            return parse_duration(self.trigger).total_seconds()
        except ValueError as error:
            raise InvalidOption(f"the trigger is not valid: {error}") from error


class StepProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one batch."""

    step: str
    batch: int
    rows_in: int
    pushed: int
    rejected: int
    rows_per_second: float
    lag: int | None


class StepDone(msgspec.Struct, frozen=True, kw_only=True):
    """What a step did in one run."""

    step: str
    batches: int = 0
    rows_in: int = 0
    pushed: int = 0
    rejected: int = 0


Progress = Callable[[StepProgress], None]


def run(
    pipeline: Pipeline,
    options: RunOptions,
    *,
    spark: SparkSession | None = None,
    steps: Sequence[str] | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> list[StepDone]:
    """Run steps of a pipeline; see `Pipeline.run`."""
    chosen = pipeline.chosen(steps)
    stop = stop or threading.Event()
    with options.access.connect() as connection:
        prepare(pipeline, chosen, connection)
    with _session(pipeline, spark) as session, stopped_by_signals(stop), explained_by_spark(), _told_once():
        runs = [StepRun(session, step, options, progress) for step in chosen]
        for together in [[one] for one in runs] if options.once else [runs]:
            _run(together, stop, options)
            if stop.is_set():
                break
    return [one.done for one in runs]


def _session(pipeline: Pipeline, spark: SparkSession | None) -> Any:
    if spark is not None:
        return nullcontext(spark)
    check_spark()
    if _SUBMITTED in os.environ:
        # The session is as spark-submit says, and ours would say otherwise.
        from pyspark.sql import SparkSession

        return SparkSession.builder.appName(pipeline.name).getOrCreate()
    return spark_session(f"lockstep pipeline {pipeline.name}")


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM set the event; a second Ctrl-C does not wait. Only the main thread can see to that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, _frame: Any) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _told_once() -> Iterator[None]:
    """What a batch raises is told by us; the bridge to Spark would log it, too."""
    bridge = logging.getLogger("py4j.clientserver")
    before, bridge.disabled = bridge.disabled, True
    try:
        yield
    finally:
        bridge.disabled = before


def prepare(pipeline: Pipeline, chosen: Sequence[Step], connection: psycopg.Connection[Any]) -> None:
    """Create the queues between the steps. Raises QueueNotFound for those that somebody else must fill."""
    written = {queue for step in pipeline.steps if step.sink_dsn_env is None for queue in step.sinks}
    find_queues(connection, [queue for step in chosen for queue in step.sources if queue not in written])
    for queue in sorted(written):
        cursor_of(connection).execute(_CREATE, [queue])


def _run(runs: Sequence[StepRun], stop: threading.Event, options: RunOptions) -> None:
    with ExitStack() as opened:
        for one in runs:
            opened.callback(one.close)
        try:
            for one in runs:
                one.start()
            while not stop.wait(POLL_SECONDS) and all([one.look() for one in runs]):
                pass
            ended_first = [one for one in runs if not one.look()]
        finally:
            _stop(runs, options.access.config().pipeline_stop_timeout_seconds)
        # Those that had to be stopped in mid-batch fail, too. That is not the reason.
        for one in (*ended_first, *runs):
            one.check()


def _stop(runs: Sequence[StepRun], seconds: float) -> None:
    """Stop all of them, each after the batch that it is working on."""
    until = time.monotonic() + seconds
    for one in runs:
        one.close_gate()
    for one in runs:
        one.stop(max(until - time.monotonic(), 0.0))


class StepRun:
    """One step as a streaming query."""

    def __init__(self, spark: SparkSession, step: Step, options: RunOptions, progress: Progress | None) -> None:
        self._spark = spark
        self._step = step
        self._options = options
        self._progress = progress
        self._record = Record(step, options.access)
        self._batches = Batches(step, options.access)
        self._checkpoint = checkpoint_of(step, options.checkpoints)
        self._gate = Gate()
        self._query: StreamingQuery | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._outcomes: dict[int, Outcome] = {}
        self._seen_at = 0.0
        self._reported = -1
        self.done = StepDone(step=step.name)

    def start(self) -> None:
        """Raises Conflict if the step is being run elsewhere, InvalidOption if its payload_schema is none."""
        self._record.lock()
        writer = self._frame().writeStream.queryName(self._step.full_name)
        writer = writer.foreachBatch(self._on_batch).trigger(**self._trigger())
        self._query = writer.option("checkpointLocation", self._checkpoint).start()
        self._record.begin(str(self._query.id))
        self._started.set()

    def _frame(self) -> DataFrame:
        from pyspark.errors import ParseException

        source = {**source_options(self._options.access), **self._step.source_options()}
        try:
            return self._spark.readStream.format("lockstep").options(**source).load()
        except ParseException as error:
            text = f"step {self._step.name!r}: the payload_schema {self._step.payload_schema!r} is not valid"
            raise InvalidOption(f"{text}: {cause_of(error)}") from error

    def _trigger(self) -> Mapping[str, Any]:
        if self._options.once:
            return {"availableNow": True}
        return {"processingTime": f"{self._options.trigger_seconds()} seconds"}

    def _on_batch(self, frame: DataFrame, batch_id: int) -> None:
        """Called by Spark, in a thread of its own. The first batch may come before start() has returned."""
        self._gate.await_opening(self._started)
        assert self._query is not None
        with self._gate.passing():
            place = Place(f"{self._step.full_name}/{self._query.id}", batch_id)
            try:
                outcome = self._batches.run(frame, place)
            except BaseException as error:
                self._failure = error
                raise
        self._outcomes[batch_id] = outcome = outcome or Outcome()
        self._add(batches=1, pushed=outcome.pushed, rejected=len(outcome.rejected))

    def _add(self, **counts: int) -> None:
        more = {name: getattr(self.done, name) + count for name, count in counts.items()}
        self.done = msgspec.structs.replace(self.done, **more)

    def look(self) -> bool:
        """Tell what came of batches since the last look; whether the query is still running."""
        assert self._query is not None
        running = self._query.isActive
        last = self._query.lastProgress
        if last is not None and last["batchId"] != self._reported:
            self._report([one for one in self._query.recentProgress if one["batchId"] > self._reported])
            self._reported = int(last["batchId"])
        if time.monotonic() - self._seen_at > SEEN_SECONDS:
            self._record.seen(None if last is None else float(last["processedRowsPerSecond"]))
            self._seen_at = time.monotonic()
        return running

    def _report(self, batches: Sequence[Any]) -> None:
        told = {int(one["batchId"]): one for one in batches if int(one["batchId"]) in self._outcomes}
        for batch_id, one in told.items():
            outcome = self._outcomes.pop(batch_id)
            rows_in = int(one["numInputRows"]) if outcome.rows_in is None else outcome.rows_in
            self._add(rows_in=rows_in)
            if self._progress is not None:
                status = self._record.status()
                self._progress(
                    StepProgress(
                        step=self._step.name,
                        batch=batch_id,
                        rows_in=rows_in,
                        pushed=outcome.pushed,
                        rejected=len(outcome.rejected),
                        rows_per_second=round(float(one["processedRowsPerSecond"]), 1),
                        lag=None if status is None else status.lag,
                    )
                )

    def close_gate(self) -> None:
        """No batch begins any more."""
        self._gate.close()

    def stop(self, seconds: float) -> None:
        """Stop the query, after its batch if that ends in time."""
        if self._query is None:
            return
        until = time.monotonic() + seconds
        with self._gate.emptied(seconds) as empty:
            if empty:
                self._let_spark_log(min(until, time.monotonic() + LOGGED_SECONDS))
            # A failure to stop leaves a query that cannot get through the gate.
            with suppress(Exception):
                self._query.stop()
            with suppress(Exception):
                self.look()

    def _let_spark_log(self, until: float) -> None:
        """Wait until Spark has told of what is done: a moment after a batch it has also noted that it need not run it
        again."""
        with suppress(Exception):
            while self.look() and self._outcomes and time.monotonic() < until:
                time.sleep(POLL_SECONDS)

    def check(self) -> None:
        """Raises what the query failed with, if it did."""
        if self._failure is not None and not isinstance(self._failure, LockstepError):
            self._failure = explain(self._failure)
        if self._failure is not None:
            raise self._failure
        error = None if self._query is None else self._query.exception()
        if error is not None and Stopping.__name__ not in str(error):
            self._failure = explain(error)
            raise self._failure

    def close(self) -> None:
        if self._query is not None:
            with suppress(Exception):
                self.check()
            self._record.end(None if self._failure is None else str(self._failure))
        self._record.close()


def main(pipeline: Pipeline, arguments: Sequence[str] | None = None) -> None:
    """Run a pipeline as the arguments of a command line say; it prints a line for every batch."""
    parser = ArgumentParser(description=f"Runs the pipeline {pipeline.name}.")
    parser.add_argument("--once", action="store_true", help="end when all that is there is done")
    parser.add_argument("--step", action="append", help="only this step; may be repeated")
    parser.add_argument("--dsn-env", help="environment variable that holds the DSN, on every node; LOCKSTEP_DSN")
    parser.add_argument("--checkpoints", help=f"where Spark keeps how far the steps are; {CHECKPOINTS}")
    parser.add_argument("--trigger", default=TRIGGER, help="how often a step looks for messages (1s)")
    given = parser.parse_args(arguments)
    try:
        pipeline.run(
            once=given.once,
            steps=given.step,
            dsn_env=given.dsn_env,
            checkpoints=given.checkpoints,
            trigger=given.trigger,
            progress=lambda one: print(line_of(one), flush=True),
        )
    except LockstepError as error:
        raise SystemExit(f"Error: {error.message} ({error.code})") from error


def line_of(progress: StepProgress) -> str:
    """A batch in one line."""
    lag = "" if progress.lag is None else f"  lag {progress.lag}"
    rejected = f"  rejected {progress.rejected}" if progress.rejected else ""
    return (
        f"{progress.step}: batch {progress.batch}  in {progress.rows_in}  out {progress.pushed}{rejected}"
        f"  {progress.rows_per_second:.0f} rows/s{lag}"
    )
