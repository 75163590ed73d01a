"""Steps of Spark pipelines on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from lockstep.core.pipelines import JobRun, PipelineStep, StepState
from lockstep.core.wire.times import timestamp, timestamp_or_none


class PipelineStepRow(Struct, rename="camel", kw_only=True):
    pipeline: str
    step: str
    sources: list[str]
    sinks: list[str]
    state: StepState
    """restarting: it failed for a reason that may go away, and is started again; gone: it stopped reporting."""
    started_at: str
    seen_at: str
    batch: int | None
    """The last committed batch."""
    committed_at: str | None
    batch_pushed: int
    batch_rejected: int
    pushed: int
    rejected: int
    duplicates: int
    """Rows that were not pushed, because their partition already has their transaction id."""
    restarts: int
    """Number of restarts since the step began to run, for reasons that may go away."""
    rows_per_second: float | None
    error: str | None
    dead_letters: int
    """How many of the rejected rows are still dead letters."""
    lag: int
    """Messages still to read."""
    oldest_at: str | None


class PipelinesAnswer(Struct):
    steps: list[PipelineStepRow]
    """Sorted by pipeline, then by start."""


class JobRunRow(Struct, rename="camel", kw_only=True):
    job: Literal["archive", "stats"]
    target: str
    """The location of the archive, or the length of the windows."""
    queues: list[str]
    began_at: str | None
    ended_at: str | None
    """Null: it is running or was aborted."""
    messages: int | None
    bytes: int | None
    windows: int | None
    """Windows of queues and groups for which statistics were computed."""


class JobRunsAnswer(Struct, rename="camel"):
    runs: list[JobRunRow]
    """Newest first."""


def job_runs_answer(runs: Sequence[JobRun]) -> JobRunsAnswer:
    return JobRunsAnswer([_job_run(run) for run in runs])


def _job_run(run: JobRun) -> JobRunRow:
    return JobRunRow(
        job=run.job,
        target=run.target,
        queues=run.queues,
        began_at=timestamp_or_none(run.began_at),
        ended_at=timestamp_or_none(run.ended_at),
        messages=run.messages,
        bytes=run.bytes,
        windows=run.windows,
    )


def pipelines_answer(steps: Sequence[PipelineStep]) -> PipelinesAnswer:
    return PipelinesAnswer([_row(step) for step in steps])


def _row(step: PipelineStep) -> PipelineStepRow:
    return PipelineStepRow(
        pipeline=step.pipeline,
        step=step.step,
        sources=step.sources,
        sinks=step.sinks,
        state=step.state,
        started_at=timestamp(step.started_at),
        seen_at=timestamp(step.seen_at),
        batch=step.batch,
        committed_at=timestamp_or_none(step.committed_at),
        batch_pushed=step.batch_pushed,
        batch_rejected=step.batch_rejected,
        pushed=step.pushed,
        rejected=step.rejected,
        duplicates=step.duplicates,
        restarts=step.restarts,
        rows_per_second=step.rows_per_second,
        error=step.error,
        dead_letters=step.dead_letters,
        lag=step.lag,
        oldest_at=timestamp_or_none(step.oldest_at),
    )
