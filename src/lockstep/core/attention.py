"""Findings that need attention, in plain words, worst first: what an operator would find by going over all figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from lockstep.core.maintenance import DutyInfo
from lockstep.core.names import QUEUE_MODE
from lockstep.core.outage import MaintenanceMode
from lockstep.core.records import GroupInfo, QueueInfo, Utilisation
from lockstep.core.statistics import DatabaseStats

Severity = Literal["critical", "warning", "notice"]
Subject = Literal["queue", "group", "dead_letters", "operations", "load", "maintenance", "duty", "database", "server"]

LAG_SECONDS = 300.0
"""A group is behind if its oldest message is older than this."""
_FULL = 0.9
"""Fraction of a limit from which it counts as nearly reached."""
_OVERDUE_INTERVALS = 5
_OVERDUE_SECONDS_MIN = 60.0
_SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "notice")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an operator should look at."""

    severity: Severity
    subject: Subject
    title: str
    text: str
    queue: str | None = None
    group: str | None = None
    count: int = 0
    """How many messages, partitions or operations are concerned."""
    since: datetime | None = None


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """All figures at one time."""

    now: datetime
    queues: Sequence[QueueInfo] = ()
    groups: Sequence[GroupInfo] = ()
    utilisation: Sequence[Utilisation] = ()
    duties: Sequence[DutyInfo] = ()
    dead_recently: dict[str, int] = {}
    """Dead letters of the last hour, by queue."""
    operations_failed: int = 0
    load: dict[str, str] = {}
    """By kind of request: what the server does with the next request, unless it executes it."""
    mode: MaintenanceMode | None = None
    database: DatabaseStats | None = None


def findings(seen: Seen) -> list[Finding]:
    """All findings, worst first; among equally bad findings, those that concern the most come first."""
    found = [
        *_of_server(seen),
        *_of_stopped(seen.utilisation),
        *_of_groups(seen),
        *_of_queues(seen),
        *_of_duties(seen),
        *_of_database(seen.database),
    ]
    return sorted(found, key=lambda one: (_SEVERITIES.index(one.severity), -one.count))


def shown_group(group: str) -> str:
    return "Plain consumers" if group == QUEUE_MODE else f"Group {group}"


def _of_server(seen: Seen) -> Iterator[Finding]:
    mode = seen.mode
    if mode is not None and mode.breaker == "open":
        yield Finding(
            severity="critical",
            subject="database",
            title="The database is away",
            text="The server considers its database unavailable. Pushes are buffered on disk, and pops find nothing.",
        )
    if mode is not None and mode.buffer is not None and mode.buffer.waiting_for is not None:
        yield Finding(
            severity="critical",
            subject="maintenance",
            title="Buffered pushes are held up",
            text=f"The database refuses the push that is next: {mode.buffer.waiting_for}",
            count=mode.buffer.messages,
        )
    if mode is not None and (mode.push or mode.pop):
        yield _maintenance(mode)
    if seen.operations_failed:
        yield Finding(
            severity="critical",
            subject="operations",
            title=f"{_several(seen.operations_failed, 'queued operation')} failed",
            text="They were accepted and could not be applied. Retry them, or leave them.",
            count=seen.operations_failed,
        )
    for kind, answer in seen.load.items():
        yield Finding(
            severity="warning",
            subject="load",
            title=f"The server is busy: it {_LOAD_WORDS[answer]} {kind} requests",
            text="More comes in than the database takes. It goes back to normal by itself once the load falls.",
        )


_LOAD_WORDS = {"queue": "queues", "shed": "sheds", "reject": "rejects"}


def _maintenance(mode: MaintenanceMode) -> Finding:
    what = [word for on, word in ((mode.push, "pushes are buffered"), (mode.pop, "pops find nothing")) if on]
    buffered = 0 if mode.buffer is None else mode.buffer.messages
    return Finding(
        severity="warning",
        subject="maintenance",
        title="Maintenance mode is on",
        text=f"{' and '.join(what).capitalize()} until an operator ends it.",
        count=buffered,
    )


def _of_stopped(utilisation: Iterable[Utilisation]) -> Iterator[Finding]:
    for use in utilisation:
        if use.partitions_stopped:
            where = f"{_several(use.partitions_stopped, 'partition')} of {use.queue}"
            yield Finding(
                severity="critical",
                subject="group",
                title=f"{shown_group(use.group)} {_be(use.group)} stopped in {where}",
                text="An exhausted message is in front, and the queue says to stop there. Give it up, or retry it.",
                queue=use.queue,
                group=use.group,
                count=use.partitions_stopped,
            )


def _of_groups(seen: Seen) -> Iterator[Finding]:
    for group in seen.groups:
        if not group.lag or group.oldest_at is None:
            continue
        if group.paused_at is not None:
            yield _paused(group, group.lag)
            continue
        age = (seen.now - group.oldest_at).total_seconds()
        if age < LAG_SECONDS:
            continue
        abandoned = not group.leases
        waits = f"{_several(group.lag, 'message')} {'waits' if group.lag == 1 else 'wait'}, the oldest for {_age(age)}"
        yield Finding(
            severity="critical" if abandoned else "warning",
            subject="group",
            title=f"{shown_group(group.name)} {_state(group)} {group.queue}",
            text=f"{waits}. {'No consumer holds a lease: are the workers running?' if abandoned else _working(group)}",
            queue=group.queue,
            group=group.name,
            count=group.lag,
            since=group.oldest_at,
        )


def _paused(group: GroupInfo, lag: int) -> Finding:
    return Finding(
        severity="warning",
        subject="group",
        title=f"{shown_group(group.name)} {_be(group.name)} paused on {group.queue}",
        text=f"{_several(lag, 'message')} {'waits' if lag == 1 else 'wait'} until an operator resumes it.",
        queue=group.queue,
        group=group.name,
        count=lag,
        since=group.paused_at,
    )


def _state(group: GroupInfo) -> str:
    if group.name == QUEUE_MODE:
        return "are behind in" if group.leases else "take nothing from"
    return "is behind in" if group.leases else "takes nothing from"


def _be(group: str) -> str:
    return "are" if group == QUEUE_MODE else "is"


def _working(group: GroupInfo) -> str:
    return f"{_several(group.leases or 0, 'lease')} {'is' if group.leases == 1 else 'are'} live: consumers are at work."


def _of_queues(seen: Seen) -> Iterator[Finding]:
    for info in seen.queues:
        dead, recent = info.dead_letters or 0, seen.dead_recently.get(info.name, 0)
        if dead:
            yield Finding(
                severity="warning" if recent else "notice",
                subject="dead_letters",
                title=f"{info.name} has {_several(dead, 'dead letter')}",
                text=f"{recent:,} in the last hour." if recent else "None in the last hour.",
                queue=info.name,
                count=dead,
            )
        limit = info.options.max_size
        if limit and info.pending is not None and info.pending >= limit * _FULL:
            yield Finding(
                severity="critical" if info.pending >= limit else "warning",
                subject="queue",
                title=f"{info.name} is {'full' if info.pending >= limit else 'nearly full'}",
                text=f"{info.pending:,} of at most {limit:,} messages are pending. Pushes to a full queue are refused.",
                queue=info.name,
                count=info.pending,
            )


def _of_duties(seen: Seen) -> Iterator[Finding]:
    for duty in seen.duties:
        patience = timedelta(seconds=max(duty.interval_seconds * _OVERDUE_INTERVALS, _OVERDUE_SECONDS_MIN))
        if duty.last_error is not None:
            yield Finding(
                severity="warning",
                subject="duty",
                title=f"The duty {duty.name} fails",
                text=duty.last_error,
                count=duty.failures,
                since=duty.last_started_at,
            )
        elif duty.next_run_at + patience < seen.now:
            yield Finding(
                severity="warning",
                subject="duty",
                title=f"The duty {duty.name} is overdue",
                text=f"It should have run {_age((seen.now - duty.next_run_at).total_seconds())} ago.",
                since=duty.next_run_at,
            )


def _of_database(stats: DatabaseStats | None) -> Iterator[Finding]:
    if stats is not None and stats.connections_max and stats.connections >= stats.connections_max * _FULL:
        yield Finding(
            severity="warning",
            subject="database",
            title="The database is running out of connections",
            text=f"{stats.connections:,} of {stats.connections_max:,} are open.",
            count=stats.connections,
        )


def _several(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            return _several(int(seconds // size), unit)
    return _several(int(seconds), "second")
