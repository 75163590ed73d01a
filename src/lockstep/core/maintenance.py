"""Maintenance: the rules that say what is removed, and the requests and results of the duties.

A queue has four policies that remove messages by age:

    retention             retention_seconds: all messages, done or not
    completed_retention   completed_retention_seconds: messages that every group is done with; none without a group
    eviction              max_wait_seconds: messages that a group has not done, or that no group exists for
    expiry                expire_seconds, or the message's own time: groups skip such a message, as a pop does;
                          on_expired says what happens to it, and it stays stored

The first two need retention_enabled, and remove a run (what one push stored in one partition) completely or not at all.
No policy removes messages under a live lease, or messages behind them.
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
    """Messages created before this are too old; None if the queue does not use this kind of removal."""
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
    """The first and last seq that may be removed of a run that is too old; `cursors` has those of all groups."""
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
    """The progress of a walk through all queues: the name of the current queue, and the id reached in it."""

    queue: str = ""
    after: int = 0
    part: Part = "partitions"
    """What the id refers to, if a walk covers several kinds of things."""


START = Place()


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one batch removed."""

    messages: int = 0
    partitions: int = 0
    next: Place | None = None
    """Where the next batch starts; None at the end of the walk."""
    problem: str | None = None
    """Why the rest of a queue was skipped."""


CLOCK_STEP_MAX = timedelta(seconds=10)
"""Clock changes backwards of at most this are ignored: the clock catches up sooner."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What one batch adjusted after the clock was set back."""

    waiting: int = 0
    """Cursors, ranges of shared groups, and operations."""
    next: Place | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of checking some of the partitions."""

    problems: list[Problem]
    partitions: int
    next: Place | None = None


@dataclass(frozen=True, slots=True)
class DutyClaim:
    granted: bool
    wait_seconds: float = 0.0
    """If not granted: how long to wait before asking again."""


class DutyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A duty that a server has performed or performs now."""

    name: str
    interval_seconds: float
    next_run_at: datetime
    claimed_until: datetime | None
    """While it runs: when the claim expires if its server is gone."""
    claimed_by: str | None
    """The server that performs it, or last performed it; for people."""
    last_started_at: datetime
    last_finished_at: datetime | None
    last_error: str | None
    """The error of the last run, if it failed."""
    last_effect: dict[str, Any] | None
    """The result of the last successful run."""
    runs: int
    failures: int


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a queue at `at`, and its activity since the previous sample (or its creation)."""

    at: datetime
    queue: str
    seconds: float
    """The length of that time span."""
    pushed: int
    completed: int
    """Messages done, summed over all groups; includes messages skipped by a seek."""
    dead: int
    """Messages that became dead letters."""
    pending: int
    """At the end: the lag of the group that is furthest behind; without groups, all stored messages."""
    lag_seconds: float
    """At the end: the age of the oldest pending message over all groups."""


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """The messages removed from a queue within one minute, for one reason."""

    at: datetime
    """The minute."""
    queue: str
    kind: RemovalKind
    messages: int
    partitions: int
    """Partitions that were themselves removed."""
