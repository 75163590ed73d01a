"""Maintenance: the rules of what is removed, and the requests and results of the duties.

Four policies of a queue remove messages, each by their age:

    retention             retention_seconds: whatever became of them
    completed_retention   completed_retention_seconds: those that every group is done with; none while there is no group
    eviction              max_wait_seconds: those that still wait for a group, or for any group to appear
    expiry                expire_seconds, or the message's own time: each group that still has one before it passes it,
                          as a pop would; what becomes of it says on_expired, and it stays stored

The first two need retention_enabled, and take a run (what one push stored in one partition) whole or not at all. None
takes what is under a live lease, nor what comes after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from lockstep.core.policy import QueueOptions
from lockstep.core.records import Problem
from lockstep.core.rules import Cursor

PruneKind = Literal["retention", "completed_retention", "eviction", "expiry"]
Part = Literal["partitions", "segments", "traces"]
RemovalKind = Literal["retention", "completed_retention", "eviction", "expiry", "idle_partition"]


def prune_before(options: QueueOptions, kind: PruneKind, now: datetime) -> datetime | None:
    """What was created before this is too old; None if the queue does not ask for this kind of removal."""
    if kind == "eviction":
        seconds = options.max_wait_seconds
    elif not options.retention_enabled:
        seconds = 0
    elif kind == "retention":
        seconds = options.retention_seconds
    else:
        seconds = options.completed_retention_seconds
    return now - timedelta(seconds=seconds) if seconds else None


def prunable(
    kind: PruneKind, first_seq: int, last_seq: int, cursors: Iterable[Cursor], now: datetime
) -> tuple[int, int] | None:
    """The seqs of a run that is too old which may go, first and last; `cursors` are those of all groups."""
    places = [(cursor.acked, cursor.leased(now)) for cursor in cursors]
    if any(leased and last_seq > acked for acked, leased in places):
        return None
    done = min((acked for acked, _ in places), default=0)
    if kind == "completed_retention":
        return (first_seq, last_seq) if places and last_seq <= done else None
    if kind == "eviction":
        return (max(first_seq, done + 1), last_seq) if last_seq > done else None
    return first_seq, last_seq


@dataclass(frozen=True, slots=True)
class Place:
    """How far a walk through all queues has come: into a queue, by name, and there to the id of what it walks over."""

    queue: str = ""
    after: int = 0
    part: Part = "partitions"
    """What that is, where a walk goes over several things."""


START = Place()


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one batch removed."""

    messages: int = 0
    partitions: int = 0
    next: Place | None = None
    """Where the next batch begins; None at the end of the walk."""
    problem: str | None = None
    """Why nothing could be done in a queue, of which the rest is left out."""


CLOCK_STEP_MAX = timedelta(seconds=10)
"""A clock that is set back by no more than this is not followed: it catches up sooner."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What one batch moved to the times of a clock that was set back."""

    waiting: int = 0
    """Cursors, ranges of shared groups, and operations."""
    next: Place | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """What a check of some of the partitions found."""

    problems: list[Problem]
    partitions: int
    next: Place | None = None


@dataclass(frozen=True, slots=True)
class DutyClaim:
    granted: bool
    wait_seconds: float = 0.0
    """If it is not granted: when it is worth asking again."""


class DutyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A duty that some server has done, or does now."""

    name: str
    interval_seconds: float
    next_run_at: datetime
    claimed_until: datetime | None
    """While it runs: when the claim ends by itself, should its server be gone."""
    claimed_by: str | None
    """The server that performs it, or did so last; for people."""
    last_started_at: datetime
    last_finished_at: datetime | None
    last_error: str | None
    """Of the last run, if it failed."""
    last_effect: dict[str, Any] | None
    """Of the last run that did not fail."""
    runs: int
    failures: int


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue was doing, from the sample before (or its creation) to `at`."""

    at: datetime
    queue: str
    seconds: float
    """How long that was."""
    pushed: int
    completed: int
    """Messages that groups have done, over all groups; what a seek skips counts, too."""
    dead: int
    """Messages that became dead letters."""
    pending: int
    """At the end: the lag of the group that is furthest behind; all stored messages while there is no group."""
    lag_seconds: float
    """At the end: the age of the oldest of them, over all groups."""


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """The messages removed from a queue within one minute, for one reason."""

    at: datetime
    """The minute."""
    queue: str
    kind: RemovalKind
    messages: int
    partitions: int
    """Partitions that went themselves."""
