"""The rules of shared groups, without a store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lockstep.core import shared
from lockstep.core.policy import QueueOptions
from lockstep.core.rules import STOPPED, AckItem, Cursor
from lockstep.core.shared import Range

NOW = datetime(2026, 5, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=60)
OPTIONS = QueueOptions(retry_limit=1, retry_delay_ms=5000)
HANDED_OUT = Cursor(acked=10)


def leased(first: int, last: int, lease_id: str = "a", attempts: int = 0, due_at: datetime = LATER) -> Range:
    return Range(first, last, due_at, lease_id, NOW, attempts)


def waiting(first: int, last: int, due_at: datetime = NOW, attempts: int = 0) -> Range:
    return Range(first, last, due_at, attempts=attempts)


def item(index: int, seq: int | None, status: Any = "completed", lease_id: str | None = "a", **more: Any) -> AckItem:
    return AckItem(index, seq, status, lease_id, None, **more)


def settle(ranges: list[Range], *items: AckItem, options: QueueOptions = OPTIONS) -> shared.SharedSettlement:
    return shared.settle(HANDED_OUT, ranges, items, options, NOW, lambda one: range(one.first, one.last + 1))


def test_low_water_mark_is_before_the_first_range() -> None:
    assert shared.low_water(10, []) == 10
    assert shared.low_water(10, [leased(4, 5), waiting(8, 9)]) == 3


@pytest.mark.parametrize(
    ("seqs", "left"),
    [([], [(1, 5)]), ([1], [(2, 5)]), ([5], [(1, 4)]), ([3], [(1, 2), (4, 5)]), ([1, 2, 3, 4, 5], [])],
)
def test_range_without_seqs(seqs: list[int], left: list[tuple[int, int]]) -> None:
    assert [(one.first, one.last) for one in shared.without(leased(1, 5), seqs)] == left


def test_completed_messages_leave_no_range() -> None:
    result = settle([leased(1, 3)], *[item(seq, seq) for seq in (1, 2, 3)])
    assert result.ranges == []
    assert [outcome.messages for outcome in result.outcomes] == [1, 1, 1]


def test_neighbours_with_the_same_fate_stay_together() -> None:
    ranges = [leased(1, 3), leased(4, 6, "b")]
    items = [item(seq, seq, "failed", None) for seq in (2, 3, 4, 6)]
    due_at = NOW + timedelta(seconds=5)
    assert settle(ranges, *items).ranges == [
        leased(1, 1),
        waiting(2, 4, due_at, attempts=1),
        leased(5, 5, "b"),
        waiting(6, 6, due_at, attempts=1),
    ]


@pytest.mark.parametrize(
    ("policy", "left", "recorded"),
    [("dead", [], [True]), ("drop", [], [False]), ("stop", [waiting(1, 1, STOPPED, attempts=2)], [])],
)
def test_exhausted_message(policy: Any, left: list[Range], recorded: list[bool]) -> None:
    options = QueueOptions(retry_limit=1, on_exhausted=policy)
    result = settle([leased(1, 1, attempts=1)], item(0, 1, "failed"), options=options)
    assert result.ranges == left
    assert [death.recorded for death in result.deaths] == recorded


@pytest.mark.parametrize(
    ("ranges", "one", "error", "noop"),
    [
        ([leased(1, 3)], item(0, None), "unresolvable", False),
        ([leased(1, 3, "b")], item(0, 2), "lease_lost", False),
        ([leased(1, 3, due_at=NOW)], item(0, 2), "lease_lost", False),
        ([leased(1, 3, due_at=NOW)], item(0, 2, lease_id=None), None, False),
        ([leased(1, 3)], item(0, 11), "lease_lost", False),
        ([leased(1, 3)], item(0, 5), None, True),
        ([leased(1, 3)], item(0, 5, "failed"), "committed", False),
        ([], item(0, 5), "lease_lost", False),
        ([], item(0, 5, lease_id=None), None, True),
    ],
)
def test_who_may_end_a_delivery(ranges: list[Range], one: AckItem, error: str | None, noop: bool) -> None:
    [outcome] = settle(ranges, one).outcomes
    assert (outcome.error, outcome.noop) == (error, noop)


def test_lease_ends_as_a_whole_after_single_messages() -> None:
    result = settle([leased(1, 4)], item(0, None, "failed", whole=True), item(1, 2))
    due_at = NOW + timedelta(seconds=5)
    assert result.ranges == [waiting(1, 1, due_at, attempts=1), waiting(3, 4, due_at, attempts=1)]
    assert result.put_back == {0}


def test_acks_may_come_one_by_one() -> None:
    items = iter([item(0, None, "failed", whole=True), item(1, 2)])
    ranges = [leased(1, 4)]
    result = shared.settle(HANDED_OUT, ranges, items, OPTIONS, NOW, lambda one: range(one.first, one.last + 1))
    assert sorted(outcome.index for outcome in result.outcomes) == [0, 1]
    assert all(one.lease_id is None for one in result.ranges)


def test_lease_of_which_nothing_is_left_ends_in_vain() -> None:
    result = settle([leased(1, 1)], item(0, 1), item(1, None, whole=True), item(2, None, lease_id="b", whole=True))
    assert [(outcome.noop, outcome.error) for outcome in result.outcomes] == [
        (False, None),
        (True, None),
        (False, "lease_lost"),
    ]


def test_time_to_retry_at_is_not_in_the_past() -> None:
    early, late = NOW - timedelta(seconds=9), NOW + timedelta(seconds=9)
    items = [item(0, 1, "retry", retry_at=early), item(1, 3, "failed", retry_at=late)]
    assert settle([leased(1, 1), leased(3, 3)], *items).ranges == [
        waiting(1, 1, attempts=1),
        waiting(3, 3, late, attempts=1),
    ]


def test_expired_lease_is_charged_to_every_message() -> None:
    charged, deaths = shared.expire(leased(1, 2), [1, 2], OPTIONS)
    assert (charged, deaths) == (waiting(1, 2, LATER, attempts=1), [])
    gone, deaths = shared.expire(leased(1, 2, attempts=1), [2], OPTIONS)
    assert (gone, [(death.seq, death.attempts) for death in deaths]) == (None, [(2, 2)])


def test_message_sees_the_cursor_of_its_own_state() -> None:
    ranges = [leased(2, 3), waiting(5, 5)]
    cursors = [shared.seen_at(HANDED_OUT, ranges, seq) for seq in (1, 3, 5, 11)]
    assert [(cursor.acked, cursor.leased(NOW)) for cursor in cursors] == [
        (1, False),
        (2, True),
        (4, False),
        (10, False),
    ]
