"""Runs steps as streaming queries: all steps of a pipeline in one session, or a single one, until they are stopped or
done.

A stopped query finishes its current batch: stopping waits, within a limit, for the gate that every batch passes. If
Spark does not log the batch in time it runs the batch again, and the repeated batch is recognized.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from lockstep.errors import Conflict, InvalidOption, LockstepError, Unavailable
from lockstep.exit_codes import exit_code
from lockstep.spark.database import Access, cursor_of, result_of
from lockstep.spark.failures import explain, explained_by_spark
from lockstep.spark.gate import Gate, Stopping
from lockstep.spark.options import parse_duration
from lockstep.spark.pipelines.batches import Batches
from lockstep.spark.pipelines.changes import Definition, changes, definition_of
from lockstep.spark.pipelines.checkpoints import RESTARTS, Checkpoint, LastRun, check, checked_restart, starting
from lockstep.spark.pipelines.committing import BatchDone, StepBatch
from lockstep.spark.pipelines.pipeline import Pipeline, Step
from lockstep.spark.pipelines.rejects import cause_of
from lockstep.spark.pipelines.stateful import StatefulBatches, state_settings
from lockstep.spark.pipelines.status import CHECKPOINTS, SEEN_SECONDS, StepRecord, checkpoint_of
from lockstep.spark.read.positions import find_queues
from lockstep.spark.restarting import Restarts
from lockstep.spark.session import check_spark, spark_session
from lockstep.storage.postgres import sql

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
LOGGED_SECONDS = 10.0
"""How long to wait for Spark to log a finished batch when its query is stopped."""
TRIGGER = "1s"
_CREATE: sql.Procedure[tuple[Any, ...]] = sql.procedure("resolve")
# The variable that Spark sets in programs started by spark-submit.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


@dataclass(frozen=True)
class RunOptions:
    """How to run a pipeline."""

    access: Access = field(default_factory=Access)
    once: bool = False
    """Process the existing messages, step by step, then end."""
    checkpoints: str | None = None
    trigger: str = TRIGGER
    """How often a step looks for new messages."""
    restart_from: str | None = None
    """Start over with an empty checkpoint: earliest, latest, or position, which is the last one that the database
    knows.
    """

    def __post_init__(self) -> None:
        self.trigger_seconds()

    def trigger_seconds(self) -> float:
        try:
            return parse_duration(self.trigger).total_seconds()
        except ValueError as error:
            raise InvalidOption(f"the trigger is not valid: {error}") from error


class StepProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one batch."""

    step: str
    batch: int
    rows_in: int
    pushed: int
    duplicates: int
    rejected: int
    rows_per_second: float
    lag: int | None


class StepDone(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a step in one run."""

    step: str
    batches: int = 0
    rows_in: int = 0
    pushed: int = 0
    duplicates: int = 0
    """Rows that were not pushed, because their partition already has their transaction id."""
    rejected: int = 0
    restarts: int = 0
    """Number of restarts after failures that went away."""


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
    for step in chosen:
        checked_restart(step, options.restart_from)
    stop = stop or threading.Event()
    with options.access.connect() as connection:
        prepare(pipeline, chosen, connection)
    with _session(pipeline, spark) as session, stopped_by_signals(stop), explained_by_spark(), _told_once():
        names = [step.name for step in pipeline.steps]
        runs = [StepRun(session, step, options, progress, names=names) for step in chosen]
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
        # spark-submit configures the session, and our settings would override its own.
        from pyspark.sql import SparkSession

        return SparkSession.builder.appName(pipeline.name).getOrCreate()
    return spark_session(f"lockstep pipeline {pipeline.name}")


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM set the event; a second Ctrl-C does not wait. Works only in the main thread."""
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
    """Lockstep reports the errors of a batch; Spark and its bridge to Python would log them again."""
    loggers = [logging.getLogger(name) for name in ("py4j.clientserver", "DataFrameQueryContextLogger")]
    before = [one.disabled for one in loggers]
    for one in loggers:
        one.disabled = True
    try:
        yield
    finally:
        for one, was in zip(loggers, before, strict=True):
            one.disabled = was


def prepare(pipeline: Pipeline, chosen: Sequence[Step], connection: psycopg.Connection[Any]) -> None:
    """Create the queues between the steps. Raises QueueNotFound for missing queues that no step fills."""
    written = {queue for step in pipeline.steps if step.sink_dsn_env is None for queue in step.sinks}
    find_queues(connection, [queue for step in chosen for queue in step.read_queues if queue not in written])
    for queue in sorted(written):
        result_of(cursor_of(connection), _CREATE(queue=queue, partitions=[], at=None))


def _run(runs: Sequence[StepRun], stop: threading.Event, options: RunOptions) -> None:
    with ExitStack() as opened:
        for one in runs:
            opened.callback(one.close)
        try:
            for one in runs:
                one.start()
            while not stop.wait(POLL_SECONDS) and all([one.tend() for one in runs]):
                for one in runs:
                    one.renew_if_stale()
            ended_first = [one for one in runs if not one.is_going_on()]
        finally:
            _stop(runs, options.access.config().pipeline_stop_timeout_seconds)
        # Steps stopped in the middle of a batch fail as well, but are not the cause. If the run was told to stop, that
        # is no failure at all: Spark interrupts what it does, and the batch runs again at the next start.
        for one in ended_first if stop.is_set() else (*ended_first, *runs):
            one.check()


def _stop(runs: Sequence[StepRun], seconds: float) -> None:
    """Stop all of them, each after its current batch."""
    until = time.monotonic() + seconds
    for one in runs:
        one.close_gate()
    for one in runs:
        one.stop(max(until - time.monotonic(), 0.0))


class StepRun:
    """One step as a streaming query, restarted after failures that may go away."""

    def __init__(
        self,
        spark: SparkSession,
        step: Step,
        options: RunOptions,
        progress: Progress | None,
        *,
        names: Sequence[str],
    ) -> None:
        """`names` are those of all steps of the pipeline."""
        config = options.access.config()
        self._spark = spark
        self._step = step
        self._options = options
        self._progress = progress
        self._names = names
        self._former: str | None = None
        self._record = StepRecord(step, options.access)
        self._batches = StatefulBatches(step, options.access) if step.stateful else Batches(step, options.access)
        self._checkpoint = Checkpoint(spark, checkpoint_of(step, options.checkpoints))
        self._restarts = Restarts(config.pipeline_restart_seconds_max, config.pipeline_restart_pause_seconds_max)
        self._restart_at: float | None = None
        self._gate = Gate()
        self._query: StreamingQuery | None = None
        self._failure: BaseException | None = None
        self._untold: dict[int, BatchDone] = {}
        self._seen_at = 0.0
        self._reported = -1
        self.done = StepDone(step=step.name)

    def start(self) -> None:
        """Raises Conflict if the step is running elsewhere, CheckpointElsewhere if it last ran with another checkpoint,
        and InvalidOption if its payload_schema is invalid."""
        self._record.lock()
        where = self._where()
        frame = self._frame(where)
        if where:
            self._record.begin("", self._checkpoint.place)
            self._checkpoint.remove()
        started = self._start_query(frame)
        assert self._query is not None
        try:
            self._record.begin(str(self._query.id), self._checkpoint.place, restarts=self._restarts.count)
        except LockstepError:
            self._gate.close()
            self._query.stop()
            raise
        started.set()
        if self._former is not None:
            self._record.forget_former(self._former)
            self._former = None

    def _start_query(self, frame: DataFrame) -> threading.Event:
        """Its batches wait for the event that this returns."""
        self._gate, started = Gate(), threading.Event()
        writer = frame.writeStream.queryName(self._step.full_name).outputMode(self._step.output_mode)
        writer = writer.foreachBatch(partial(self._on_batch, self._gate, started)).trigger(**self._trigger())
        with state_settings(self._spark, self._step) if self._step.stateful else nullcontext():
            self._query = writer.option("checkpointLocation", self._checkpoint.folder).start()
        return started

    def renew_if_stale(self) -> None:
        """Restart the query of a stateful step if a side input is due to be read again: its plan contains the old
        contents. Its progress is in the checkpoint."""
        if self._options.once or self._query is None or not self._batches.is_stale or self._restart_at is not None:
            return
        if self._query.lastProgress is None:
            return  # starting a query takes long: if restarted before its first batch, it might never reach one
        self.close_gate()
        self.stop(self._options.access.config().pipeline_stop_timeout_seconds)
        self.check()
        self._start_query(self._frame({})).set()

    def _where(self) -> Mapping[str, str]:
        """The source options for a new start of the step."""
        last = self._record.last_run()
        former = self._record.former(self._names) if last is None else None
        if self._options.restart_from is None or self._restarts.count:
            check(self._step, self._checkpoint, last, former)
            self._say_what_has_changed(last)
            return {}
        self._former = former
        return starting(self._step, self._options.restart_from, self._record.position(former))

    def _say_what_has_changed(self, last: LastRun | None) -> None:
        if last is None or last.definition is None or self._restarts.count:
            return
        before = msgspec.json.decode(last.definition, type=Definition)
        for change in changes(before, definition_of(self._step)):
            what = "step %r of pipeline %r has changed since it last ran. %s"
            _log.warning(what, self._step.name, self._step.pipeline, change)

    def _frame(self, where: Mapping[str, str]) -> DataFrame:
        from pyspark.errors import ParseException

        try:
            return self._batches.frame(self._spark, where)
        except ParseException as error:
            text = f"step {self._step.name!r}: the payload_schema {self._step.payload_schema!r} is not valid"
            raise InvalidOption(f"{text}: {cause_of(error)}") from error

    def _trigger(self) -> Mapping[str, Any]:
        if self._options.once:
            return {"availableNow": True}
        return {"processingTime": f"{self._options.trigger_seconds()} seconds"}

    def _on_batch(self, gate: Gate, started: threading.Event, frame: DataFrame, batch_id: int) -> None:
        """Called by Spark in a separate thread. The first batch may come before start() has returned."""
        gate.await_opening(started)
        assert self._query is not None
        with gate.passing():
            place = StepBatch(f"{self._step.full_name}/{self._query.id}", batch_id)
            try:
                done = self._batches.run(frame, place)
            except BaseException as error:
                self._failure = error
                raise
        self._untold[batch_id] = done
        self._add(batches=1, pushed=done.pushed, duplicates=done.duplicates, rejected=done.rejected)
        self._add(rows_in=done.rows_in or 0)
        self._restarts.has_worked()

    def _add(self, **counts: int) -> None:
        more = {name: getattr(self.done, name) + count for name, count in counts.items()}
        self.done = msgspec.structs.replace(self.done, **more)

    def tend(self) -> bool:
        """Watch the query, and restart it if that helps; returns whether the step continues."""
        if self._restart_at is not None:
            return time.monotonic() < self._restart_at or self._start_again()
        if self.look():
            return True
        error = self._error()
        return error is not None and self._will_restart(error)

    def is_going_on(self) -> bool:
        return self._restart_at is not None or (self._query is not None and self._query.isActive)

    def _will_restart(self, error: LockstepError) -> bool:
        seconds = self._restarts.pause(error)
        if seconds is None:
            return False
        _log.warning(
            "step %r of pipeline %r is started again in %.1f s: %s",
            *(self._step.name, self._step.pipeline, seconds, error.message),
        )
        self._restart_at = time.monotonic() + seconds
        self._record.failed(error.message)
        return True

    def _start_again(self) -> bool:
        self._restart_at = self._failure = None
        self._gate.close()
        self._record.close()
        try:
            with explained_by_spark():
                self.start()
        except LockstepError as error:
            self._failure = error
            # After a lost connection the database may count it as alive for a while, and the step as running there.
            is_held = type(error) is Conflict
            return self._will_restart(Unavailable(error.message) if is_held else error)
        self._add(restarts=1)
        return True

    def look(self) -> bool:
        """Report batches since the last call; returns whether the query is still running."""
        assert self._query is not None
        running = self._query.isActive
        last = self._query.lastProgress
        if last is not None and last["batchId"] != self._reported:
            self._report([one for one in self._query.recentProgress if one["batchId"] > self._reported])
            self._reported = int(last["batchId"])
        if time.monotonic() - self._seen_at > SEEN_SECONDS:
            self._say_that_it_lives(None if last is None else float(last["processedRowsPerSecond"]))
            self._seen_at = time.monotonic()
        return running

    def _say_that_it_lives(self, rows_per_second: float | None) -> None:
        try:
            self._record.seen(rows_per_second)
        except Unavailable:
            return  # the query notices this, or the database is back before that
        except Conflict as error:
            assert self._query is not None
            self._failure = Unavailable(f"the connection that held the step was lost: {error.message}")
            self._gate.close()
            self._query.stop()

    def _report(self, batches: Sequence[Any]) -> None:
        told = {int(one["batchId"]): one for one in batches if int(one["batchId"]) in self._untold}
        for batch_id, one in told.items():
            done = self._untold.pop(batch_id)
            if done.rows_in is None:
                done = replace(done, rows_in=self._batches.rows_in(one))
                self._add(rows_in=done.rows_in or 0)
            if self._progress is not None:
                status = self._record.status()
                self._progress(
                    StepProgress(
                        step=self._step.name,
                        batch=batch_id,
                        **asdict(done),
                        rows_per_second=round(float(one["processedRowsPerSecond"]), 1),
                        lag=None if status is None else status.lag,
                    )
                )

    def close_gate(self) -> None:
        """Lets no new batch begin."""
        self._gate.close()

    def stop(self, seconds: float) -> None:
        """Stop the query, after its batch if that ends in time."""
        if self._query is None:
            return
        until = time.monotonic() + seconds
        with self._gate.emptied(seconds) as empty:
            if empty:
                self._let_spark_log(min(until, time.monotonic() + LOGGED_SECONDS))
            # A query that fails to stop cannot pass the gate anyway.
            with suppress(Exception):
                self._query.stop()
            with suppress(Exception):
                self.look()

    def _let_spark_log(self, until: float) -> None:
        """Wait until Spark has reported the finished batch: a moment later it has also logged that the batch need not
        run again."""
        with suppress(Exception):
            while self.look() and self._untold and time.monotonic() < until:
                time.sleep(POLL_SECONDS)

    def _error(self) -> LockstepError | None:
        """The error of a failed query, or None."""
        if self._failure is None and self._query is not None:
            error = self._query.exception()
            if error is not None and Stopping.__name__ not in str(error):
                self._failure = error
        if self._failure is not None and not isinstance(self._failure, LockstepError):
            found, ours = self._failure, explain(self._failure)
            ours.__cause__ = found
            self._failure = ours
        return self._failure

    def check(self) -> None:
        """Raise the error of a failed query, unless the step waits to be restarted."""
        error = None if self._restart_at is not None else self._error()
        if error is not None:
            raise error

    def close(self) -> None:
        if self._query is not None:
            with suppress(Exception):
                self.check()
            self._record.end(None if self._failure is None else str(self._failure))
        self._batches.close()
        self._record.close()


@contextmanager
def tracebacks(*, shown: bool) -> Iterator[None]:
    """Print the traceback of an error before it is reported in a sentence."""
    try:
        yield
    except LockstepError:
        if shown:
            traceback.print_exc()
        raise


def main(pipeline: Pipeline, arguments: Sequence[str] | None = None) -> None:
    """Run a pipeline with the arguments of a command line; prints a line for every batch."""
    parser = ArgumentParser(description=f"Runs the pipeline {pipeline.name}.")
    parser.add_argument("--once", action="store_true", help="process the messages that are there, then exit")
    parser.add_argument("--step", action="append", help="only this step; may be repeated")
    parser.add_argument("--dsn-env", help="environment variable that holds the DSN, on every node; LOCKSTEP_DSN")
    parser.add_argument("--checkpoints", help=f"where Spark keeps how far the steps are; {CHECKPOINTS}")
    parser.add_argument("--restart-from", choices=RESTARTS, help="begin anew there, with an empty checkpoint")
    parser.add_argument("--trigger", default=TRIGGER, help="how often a step looks for messages (1s)")
    parser.add_argument("--traceback", action="store_true", help="print where it was raised if a step fails")
    given = parser.parse_args(arguments)
    try:
        with tracebacks(shown=given.traceback):
            pipeline.run(
                once=given.once,
                steps=given.step,
                dsn_env=given.dsn_env,
                checkpoints=given.checkpoints,
                trigger=given.trigger,
                restart_from=given.restart_from,
                progress=lambda one: print(line_of(one), flush=True),
            )
    except LockstepError as error:
        print(f"Error: {error.message} ({error.code})", file=sys.stderr)
        raise SystemExit(exit_code(error)) from error


def line_of(progress: StepProgress) -> str:
    """A batch in one line."""
    lag = "" if progress.lag is None else f"  lag {progress.lag}"
    duplicates = f"  duplicates {progress.duplicates}" if progress.duplicates else ""
    rejected = f"  rejected {progress.rejected}" if progress.rejected else ""
    return (
        f"{progress.step}: batch {progress.batch}  in {progress.rows_in}  out {progress.pushed}{duplicates}{rejected}"
        f"  {progress.rows_per_second:.0f} rows/s{lag}"
    )
