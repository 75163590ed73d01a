"""Steps of Spark pipelines as the database knows them, whoever runs them and wherever."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

StepState = Literal["running", "restarting", "stopped", "failed", "gone"]
"""`restarting`: it failed for a reason that may go away, and is started again. `gone`: it stopped reporting."""
GONE_SECONDS = 30.0
"""A step that has not reported for this long is gone."""


class PipelineStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step as last reported."""

    pipeline: str
    step: str
    sources: list[str]
    sinks: list[str]
    state: StepState
    started_at: datetime
    seen_at: datetime
    batch: int | None
    """The last committed batch."""
    committed_at: datetime | None
    batch_pushed: int
    batch_rejected: int
    pushed: int
    rejected: int
    rows_per_second: float | None
    error: str | None
    dead_letters: int
    """How many of the rejected rows are still dead letters."""
    lag: int
    """Messages still to read."""
    oldest_at: datetime | None
    position: str | None
    checkpoint: str | None
    """The checkpoint of the last run, with its machine or file system."""
    restarts: int = 0
    """Number of restarts since the step began to run, for reasons that may go away."""
    restart_error: str | None = None
    """The reason of the last restart."""
    duplicates: int = 0
    """Rows that were not pushed, because their partition already has their transaction id."""


class JobRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a Spark job: a batch of an archive, or statistics by window."""

    job: Literal["archive", "stats"]
    target: str
    """The location of the archive, or the length of the windows."""
    queues: list[str]
    began_at: datetime | None
    ended_at: datetime | None
    """None: it is running or was aborted."""
    messages: int | None
    """Messages archived."""
    bytes: int | None
    windows: int | None
    """Windows of queues and groups for which statistics were computed."""
