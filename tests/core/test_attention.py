"""What an operator is told first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lockstep.core.attention import Seen, findings
from lockstep.core.maintenance import DutyInfo
from lockstep.core.names import QUEUE_MODE
from lockstep.core.outage import MaintenanceMode
from lockstep.core.policy import QueueOptions
from lockstep.core.records import GroupInfo, QueueInfo, Subscription, Utilisation
from lockstep.core.statistics import DatabaseStats

NOW = datetime(2026, 5, 1, 10, tzinfo=UTC)
LONG_AGO = NOW - timedelta(minutes=12)


def queue(**given: Any) -> QueueInfo:
    known: dict[str, Any] = {
        "id": 1,
        "name": "orders",
        "namespace": "",
        "task": "",
        "options": QueueOptions(),
        "created_at": LONG_AGO,
        "partitions": 1,
        "messages": 0,
        "pending": 0,
        "processing": 0,
        "dead_letters": 0,
    }
    return QueueInfo(**known | given)


def group(**given: Any) -> GroupInfo:
    known: dict[str, Any] = {
        "name": "billing",
        "queue": "orders",
        "created_at": LONG_AGO,
        "subscription": Subscription(),
        "partitions": 3,
        "partitions_with_lag": 1,
        "lag": 1234,
        "leases": 0,
        "oldest_at": LONG_AGO,
    }
    return GroupInfo(**known | given)


def duty(**given: Any) -> DutyInfo:
    known: dict[str, Any] = {
        "name": "retention",
        "interval_seconds": 60.0,
        "next_run_at": NOW,
        "claimed_until": None,
        "claimed_by": None,
        "last_started_at": LONG_AGO,
        "last_finished_at": LONG_AGO,
        "last_error": None,
        "last_effect": None,
        "runs": 1,
        "failures": 0,
    }
    return DutyInfo(**known | given)


def told(**seen: Any) -> list[tuple[str, str]]:
    return [(one.severity, one.title) for one in findings(Seen(now=NOW, **seen))]


def test_nothing_is_told_of_what_is_well() -> None:
    drained = group(lag=0, oldest_at=None, leases=2)
    assert told(queues=[queue()], groups=[drained], duties=[duty()], mode=MaintenanceMode(push=False, pop=False)) == []


def test_paused_group_is_said_to_be_paused_whatever_its_lag() -> None:
    assert told(groups=[group(paused_at=NOW)]) == [("warning", "Group billing is paused on orders")]
    assert told(groups=[group(paused_at=NOW, lag=0, oldest_at=None)]) == []


def test_group_that_nobody_serves_is_critical_and_one_at_work_is_not() -> None:
    assert told(groups=[group()]) == [("critical", "Group billing takes nothing from orders")]
    assert told(groups=[group(leases=2)]) == [("warning", "Group billing is behind in orders")]
    assert told(groups=[group(name=QUEUE_MODE)]) == [("critical", "Plain consumers take nothing from orders")]
    assert told(groups=[group(oldest_at=NOW - timedelta(seconds=30))]) == []


def test_text_says_how_much_and_for_how_long() -> None:
    (one,) = findings(Seen(now=NOW, groups=[group()]))
    assert one.text == (
        "1,234 messages wait, the oldest for 12 minutes. No consumer holds a lease: are the workers running?"
    )
    assert (one.queue, one.group, one.count, one.since) == ("orders", "billing", 1234, LONG_AGO)


def test_dead_letters_of_the_last_hour_weigh_more_than_old_ones() -> None:
    dead = queue(dead_letters=3)
    assert told(queues=[dead], dead_recently={"orders": 1}) == [("warning", "orders has 3 dead letters")]
    assert told(queues=[dead]) == [("notice", "orders has 3 dead letters")]


@pytest.mark.parametrize(
    ("pending", "expected"),
    [(89, []), (90, [("warning", "orders is nearly full")]), (100, [("critical", "orders is full")]), (None, [])],
)
def test_full_queue(pending: int | None, expected: list[tuple[str, str]]) -> None:
    assert told(queues=[queue(pending=pending, options=QueueOptions(max_size=100))]) == expected


def test_duty_that_fails_or_is_overdue() -> None:
    overdue = duty(name="samples", next_run_at=NOW - timedelta(minutes=6))
    assert told(duties=[duty(last_error="no space left"), overdue]) == [
        ("warning", "The duty retention fails"),
        ("warning", "The duty samples is overdue"),
    ]


def test_worst_comes_first_and_of_those_what_concerns_most() -> None:
    stopped = Utilisation(
        queue="orders",
        group="billing",
        partitions=9,
        partitions_leased=0,
        partitions_ready=0,
        partitions_waiting=0,
        partitions_stopped=2,
    )
    found = told(
        queues=[queue(dead_letters=9)],
        groups=[group(leases=1, lag=5), group(name="other", leases=1, lag=50)],
        utilisation=[stopped],
        operations_failed=7,
        mode=MaintenanceMode(push=True, pop=False, breaker="open"),
        database=DatabaseStats(connections=95, connections_max=100),
        load={"push": "queue"},
    )
    assert found == [
        ("critical", "7 queued operations failed"),
        ("critical", "Group billing is stopped in 2 partitions of orders"),
        ("critical", "The database is away"),
        ("warning", "The database is running out of connections"),
        ("warning", "Group other is behind in orders"),
        ("warning", "Group billing is behind in orders"),
        ("warning", "Maintenance mode is on"),
        ("warning", "The server is busy: it queues push requests"),
        ("notice", "orders has 9 dead letters"),
    ]
