"""Steps of Spark pipelines, as the database knows them: whoever runs them, and wherever."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

StepState = Literal["running", "restarting", "stopped", "failed", "gone"]
"""restarting: it failed of what may pass, and is started again; gone: it ended without a word."""
GONE_SECONDS = 30.0
"""A step that has told nothing for so long is gone."""


class PipelineStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step, as it was last heard of."""

    pipeline: str
    step: str
    sources: list[str]
    sinks: list[str]
    state: StepState
    started_at: datetime
    seen_at: datetime
    batch: int | None
    """The last one that was committed."""
    committed_at: datetime | None
    batch_pushed: int
    batch_rejected: int
    pushed: int
    rejected: int
    rows_per_second: float | None
    error: str | None
    dead_letters: int
    """Of those that it has rejected, how many are dead letters still."""
    lag: int
    """Messages that it has still to read."""
    oldest_at: datetime | None
    position: str | None
    checkpoint: str | None
    """The one that it last ran with, on which machine or file system."""
    restarts: int = 0
    """How often it was started again since it began to run, because of what passed."""
    restart_error: str | None = None
    """Why, the last time."""
    duplicates: int = 0
    """Rows that were not pushed, because their partition has their transaction id."""


class JobRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a job on Spark did at one time: a batch of an archive, or statistics by window."""

    job: Literal["archive", "stats"]
    target: str
    """The location of the archive; or how long the windows are."""
    queues: list[str]
    began_at: datetime | None
    ended_at: datetime | None
    """None: it is at work, or broke off."""
    messages: int | None
    """In the archive."""
    bytes: int | None
    windows: int | None
    """Of queues and groups, with statistics."""
