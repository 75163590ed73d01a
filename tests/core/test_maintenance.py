"""The rules of what is removed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lockstep.core.maintenance import PruneKind, prunable, prune_before
from lockstep.core.policy import QueueOptions, queue_options
from lockstep.core.rules import Cursor

NOW = datetime(2026, 5, 1, tzinfo=UTC)
DONE = Cursor(acked=5)
BEHIND = Cursor(acked=3)
LEASED = Cursor(acked=3, lease_id="l", lease_to=4, due_at=NOW + timedelta(seconds=1))
EXPIRED = Cursor(acked=3, lease_id="l", lease_to=4, due_at=NOW)


@pytest.mark.parametrize(
    ("options", "ages"),
    [
        (QueueOptions(), (None, None, None)),
        (queue_options(retention_seconds=1, completed_retention_seconds=2), (None, None, None)),
        (queue_options(retention_enabled=True), (None, None, None)),
        (queue_options(retention_enabled=True, retention_seconds=1), (1, None, None)),
        (queue_options(retention_enabled=True, completed_retention_seconds=2), (None, 2, None)),
        (queue_options(max_wait_seconds=3), (None, None, 3)),
    ],
)
def test_age_is_that_of_the_policy(options: QueueOptions, ages: tuple[int | None, ...]) -> None:
    kinds: tuple[PruneKind, ...] = ("retention", "completed_retention", "eviction")
    found = [prune_before(options, kind, NOW) for kind in kinds]
    assert found == [None if age is None else NOW - timedelta(seconds=age) for age in ages]


@pytest.mark.parametrize(
    ("kind", "cursors", "going"),
    [
        ("retention", [], (2, 5)),
        ("retention", [BEHIND, DONE], (2, 5)),
        ("retention", [EXPIRED], (2, 5)),
        ("retention", [LEASED, DONE], None),
        ("completed_retention", [], None),
        ("completed_retention", [DONE], (2, 5)),
        ("completed_retention", [DONE, BEHIND], None),
        ("eviction", [], (2, 5)),
        ("eviction", [DONE], None),
        ("eviction", [DONE, BEHIND], (4, 5)),
        ("eviction", [DONE, Cursor()], (2, 5)),
        ("eviction", [DONE, LEASED], None),
    ],
)
def test_what_may_go_of_a_run(kind: PruneKind, cursors: list[Cursor], going: tuple[int, int] | None) -> None:
    """Of a run of the seqs 2 to 5."""
    assert prunable(kind, 2, 5, cursors, NOW) == going


def test_lease_on_later_messages_protects_no_earlier_run() -> None:
    assert prunable("retention", 1, 3, [LEASED], NOW) == (1, 3)
