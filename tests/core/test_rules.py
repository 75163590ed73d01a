"""The rules of delivery as functions of (state, now)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core import rules
from lockstep.core.policy import queue_options
from lockstep.core.records import AckStatus
from lockstep.core.rules import STOPPED, AckItem, Ahead, Cursor, Death, Settlement
from support.clock import START as NOW

LEASE = "11111111-1111-7111-8111-111111111111"
OTHER = "22222222-2222-7222-8222-222222222222"


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def leased(acked: int = 0, to: int = 5, *, attempts: int = 0, expires_in: float = 60) -> Cursor:
    cursor = Cursor(acked=acked, attempts=attempts)
    return rules.lease(cursor, lease_id=LEASE, to=to, since=NOW, until=NOW + seconds(expires_in))


def item(seq: int | None, status: AckStatus = "completed", *, lease: str | None = LEASE, index: int = 0) -> AckItem:
    return AckItem(index, seq, status, lease, "why")


def settle(cursor: Cursor, *items: AckItem, **options: Any) -> Settlement:
    return rules.settle(cursor, items, queue_options(**options), NOW)


def errors(settlement: Settlement) -> list[str | None]:
    return [outcome.error for outcome in sorted(settlement.outcomes, key=lambda outcome: outcome.index)]


# --- The states of a cursor


@pytest.mark.parametrize(
    ("cursor", "is_leased", "is_expired", "is_due"),
    [
        (Cursor(), False, False, False),
        (Cursor(due_at=NOW), False, False, True),
        (Cursor(due_at=NOW + seconds(1)), False, False, False),
        (Cursor(due_at=STOPPED), False, False, False),
        (leased(expires_in=1), True, False, False),
        (leased(expires_in=0), False, True, True),
    ],
    ids=["drained", "due", "waiting", "stopped", "leased", "expired"],
)
def test_states(cursor: Cursor, is_leased: bool, is_expired: bool, is_due: bool) -> None:
    assert (cursor.leased(NOW), cursor.expired(NOW), cursor.due(NOW)) == (is_leased, is_expired, is_due)


def test_release_keeps_place_and_attempts() -> None:
    released = rules.release(leased(acked=3, attempts=2))
    assert (released.acked, released.attempts) == (3, 2)
    assert (released.lease_id, released.lease_to, released.leased_at) == (None, None, None)


def test_move_starts_attempts_again() -> None:
    moved = rules.move(Cursor(acked=2, attempts=3), 4, NOW)
    assert moved == Cursor(acked=4, attempts=0, consumed_at=NOW)


@pytest.mark.parametrize("acked", [1, 2])
def test_move_never_goes_back(acked: int) -> None:
    cursor = Cursor(acked=2, attempts=3)
    assert rules.move(cursor, acked, NOW) is cursor


def test_place_is_no_consumption() -> None:
    cursor = replace(leased(acked=7, attempts=2), consumed_at=NOW - seconds(9))
    assert rules.place(cursor, 3) == Cursor(acked=3, consumed_at=NOW - seconds(9))


# --- When a cursor is due


def test_due_after_release_is_none_with_nothing_ahead() -> None:
    assert rules.due_after_release(None, queue_options(delay_seconds=5), not_before=NOW) is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 0),
        ({"delay_seconds": 5}, 0),
        ({"delay_seconds": 15}, 5),
        ({"window_seconds": 5}, 3),
        ({"window_seconds": 1}, 0),
        ({"delay_seconds": 15, "window_seconds": 5}, 5),
        ({"delay_seconds": 12, "window_seconds": 6}, 4),
    ],
)
def test_due_after_release_waits_for_delay_and_window(options: dict[str, int], expected: int) -> None:
    ahead = Ahead(next_created_at=NOW - seconds(10), newest_created_at=NOW - seconds(2))
    due_at = rules.due_after_release(ahead, queue_options(**options), not_before=NOW)
    assert due_at == NOW + seconds(expected)


def test_due_after_release_is_not_before_the_retry() -> None:
    ahead = Ahead(NOW - seconds(10), NOW - seconds(10))
    retry_at = NOW + seconds(30)
    assert rules.due_after_release(ahead, queue_options(delay_seconds=20), not_before=retry_at) == retry_at


@pytest.mark.parametrize(
    ("options", "cursor", "expected"),
    [
        ({}, Cursor(), NOW),
        ({"delay_seconds": 5}, Cursor(), NOW + seconds(5)),
        ({"window_seconds": 5}, Cursor(), NOW + seconds(5)),
        ({"delay_seconds": 9, "window_seconds": 5}, Cursor(), NOW + seconds(9)),
        ({"delay_seconds": 5}, Cursor(due_at=NOW - seconds(1)), NOW - seconds(1)),
        ({"window_seconds": 5}, Cursor(due_at=NOW - seconds(1)), NOW + seconds(5)),
        ({"window_seconds": 5}, Cursor(due_at=NOW + seconds(8)), NOW + seconds(8)),
        ({"window_seconds": 5}, leased(expires_in=1), NOW + seconds(1)),
        ({"window_seconds": 5}, Cursor(due_at=STOPPED), STOPPED),
        ({}, Cursor(due_at=STOPPED), STOPPED),
    ],
)
def test_due_after_push(options: dict[str, int], cursor: Cursor, expected: Any) -> None:
    assert rules.due_after_push(cursor, NOW, queue_options(**options)) == expected


# --- An expired lease


def test_expiry_charges_the_head() -> None:
    cursor, death = rules.expire(leased(acked=2, attempts=1, expires_in=0), 3, queue_options(retry_limit=2), NOW)
    assert death is None
    assert (cursor.acked, cursor.attempts, cursor.lease_id) == (2, 2, None)


@pytest.mark.parametrize(("policy", "recorded"), [("dead", True), ("drop", False)])
def test_expiry_of_the_last_attempt_passes_the_head(policy: str, recorded: bool) -> None:
    options = queue_options(retry_limit=1, on_exhausted=policy)
    cursor, death = rules.expire(leased(acked=2, attempts=1, expires_in=0), 4, options, NOW)
    assert death == Death(seq=4, attempts=2, error="lease expired", recorded=recorded)
    assert (cursor.acked, cursor.attempts, cursor.consumed_at, cursor.lease_id) == (4, 0, NOW, None)


def test_expiry_of_the_last_attempt_stops() -> None:
    options = queue_options(retry_limit=0, on_exhausted="stop")
    cursor, death = rules.expire(leased(acked=2, expires_in=0), 3, options, NOW)
    assert death is None
    assert (cursor.acked, cursor.attempts, cursor.due_at, cursor.lease_id) == (2, 1, STOPPED, None)


def test_expiry_with_nothing_ahead_charges_nobody() -> None:
    cursor, death = rules.expire(leased(acked=2, attempts=1, expires_in=0), None, queue_options(retry_limit=0), NOW)
    assert death is None
    assert (cursor.attempts, cursor.lease_id) == (1, None)


@pytest.mark.parametrize("cursor", [leased(acked=5, to=5, expires_in=0), leased(acked=2, to=5, expires_in=0)])
def test_expiry_does_not_charge_a_head_that_was_not_leased(cursor: Cursor) -> None:
    released, death = rules.expire(cursor, 6, queue_options(retry_limit=0), NOW)
    assert death is None
    assert (released.attempts, released.acked, released.lease_id) == (0, cursor.acked, None)


# --- Keeping and giving up


def test_lease_is_kept_though_nothing_is_left() -> None:
    held = leased(acked=0, to=5)
    kept = rules.keep_lease(held, settle(held, item(5)).cursor)
    assert (kept.acked, kept.lease_id, kept.lease_to, kept.due_at) == (5, LEASE, 5, held.due_at)


def test_lease_that_is_kept_reaches_as_far_as_the_cursor() -> None:
    held = leased(acked=0, to=5)
    assert rules.keep_lease(held, settle(held, item(7, lease=None)).cursor).lease_to == 7


@pytest.mark.parametrize(
    ("cursor", "attempts"),
    [(Cursor(acked=2, attempts=1), 1), (leased(acked=2, attempts=1, expires_in=0), 2), (Cursor(2, STOPPED), 0)],
    ids=["waiting", "expired", "stopped"],
)
def test_bury_passes_the_head_and_tells_its_attempts(cursor: Cursor, attempts: int) -> None:
    buried, death = rules.bury(cursor, 3, "why", NOW)
    assert death == Death(seq=3, attempts=attempts, error="why", recorded=True)
    assert (buried.acked, buried.attempts, buried.lease_id, buried.consumed_at) == (3, 0, None, NOW)


# --- Acks


def test_completed_commits_a_prefix() -> None:
    result = settle(leased(acked=0, to=5), item(3))
    assert errors(result) == [None]
    assert result.outcomes[0].messages == 3
    assert (result.cursor.acked, result.cursor.lease_id, result.released) == (3, LEASE, False)


def test_completing_all_of_the_lease_releases_it() -> None:
    result = settle(leased(to=5, attempts=2), item(5))
    assert (result.cursor.acked, result.cursor.attempts, result.cursor.lease_id) == (5, 0, None)
    assert result.released


def test_items_are_applied_in_seq_order() -> None:
    result = settle(leased(to=5), item(5, index=0), item(2, index=1))
    assert [(outcome.index, outcome.messages) for outcome in result.outcomes] == [(1, 2), (0, 3)]


@pytest.mark.parametrize("status", ["completed", "failed", "retry", "released", "dlq"])
def test_other_lease_changes_nothing(status: AckStatus) -> None:
    cursor = leased()
    result = settle(cursor, item(1, status, lease=OTHER))
    assert errors(result) == ["lease_lost"]
    assert (result.cursor, result.released, result.deaths) == (cursor, False, [])


def test_ack_at_the_deadline_loses_the_lease() -> None:
    assert errors(settle(leased(expires_in=0), item(1))) == ["lease_lost"]


def test_seq_after_the_lease_is_lease_lost() -> None:
    assert errors(settle(leased(to=5), item(6))) == ["lease_lost"]


def test_ack_without_lease_is_not_fenced() -> None:
    result = settle(leased(to=5), item(7, lease=None))
    assert errors(result) == [None]
    assert (result.cursor.acked, result.released) == (7, True)


def test_unknown_message_is_unresolvable_and_keeps_the_lease() -> None:
    cursor = leased()
    result = settle(cursor, item(None))
    assert errors(result) == ["unresolvable"]
    assert (result.cursor, result.released) == (cursor, False)


def test_completed_again_is_a_noop() -> None:
    result = settle(leased(acked=3), item(2))
    assert (errors(result), result.outcomes[0].noop, result.cursor.acked) == ([None], True, 3)


@pytest.mark.parametrize("status", ["failed", "retry", "released", "dlq"])
def test_failure_of_something_done_is_committed(status: AckStatus) -> None:
    result = settle(leased(acked=3), item(2, status))
    assert (errors(result), result.released, result.deaths) == (["committed"], False, [])


def test_failed_charges_an_attempt_and_waits() -> None:
    result = settle(leased(attempts=1), item(1, "failed"), retry_limit=3, retry_delay_ms=500, retry_backoff=2.0)
    assert (result.cursor.acked, result.cursor.attempts, result.cursor.lease_id) == (0, 2, None)
    assert result.not_before == NOW + seconds(1)


def test_retry_charges_nothing_and_waits_for_nothing() -> None:
    result = settle(leased(attempts=1), item(1, "retry"), retry_limit=0)
    assert (result.cursor.attempts, result.released, result.not_before, result.deaths) == (1, True, None, [])


@pytest.mark.parametrize("status", ["failed", "retry", "released"])
def test_failure_clamps_what_comes_after_it(status: AckStatus) -> None:
    result = settle(leased(to=5), item(1), item(2, status, index=1), item(5, index=2), item(3, "dlq", index=3))
    assert errors(result) == [None, None, "clamped", "clamped"]
    assert (result.cursor.acked, result.deaths) == (1, [])


def test_second_failure_of_a_call_is_not_charged_again() -> None:
    result = settle(leased(), item(1, "failed"), item(2, "failed", index=1))
    assert (errors(result), result.cursor.attempts) == ([None, None], 1)


@pytest.mark.parametrize(("policy", "recorded"), [("dead", True), ("drop", False)])
def test_exhausted_message_is_passed(policy: str, recorded: bool) -> None:
    result = settle(leased(acked=1, attempts=2), item(2, "failed"), retry_limit=2, on_exhausted=policy)
    assert result.deaths == [Death(seq=2, attempts=3, error="why", recorded=recorded)]
    assert (result.outcomes[0].dead, result.cursor.acked, result.cursor.attempts) == (recorded, 2, 0)
    assert (result.released, result.not_before) == (True, None)


@pytest.mark.parametrize("policy", ["dead", "drop", "stop"])
def test_dlq_is_always_recorded(policy: str) -> None:
    result = settle(leased(), item(1, "dlq"), retry_limit=9, on_exhausted=policy)
    assert result.deaths == [Death(seq=1, attempts=1, error="why", recorded=True)]
    assert (result.outcomes[0].dead, result.cursor.acked, result.stopped) == (True, 1, False)


def test_dlq_does_not_clamp() -> None:
    result = settle(leased(to=3), item(1, "dlq"), item(3, index=1))
    assert (errors(result), result.cursor.acked) == ([None, None], 3)


def test_exhaustion_can_stop_the_partition() -> None:
    result = settle(leased(acked=1, attempts=1), item(2, "failed"), retry_limit=1, on_exhausted="stop")
    assert (result.stopped, result.released, result.deaths) == (True, True, [])
    assert (result.cursor.acked, result.cursor.attempts, result.cursor.due_at) == (1, 2, STOPPED)


@pytest.mark.parametrize("status", ["completed", "dlq", "retry"])
def test_stopped_partition_can_be_set_going_by_an_ack(status: AckStatus) -> None:
    stopped = Cursor(acked=1, attempts=2, due_at=STOPPED)
    result = settle(stopped, item(2, status, lease=None), on_exhausted="stop")
    moved = result.cursor.acked > stopped.acked
    assert not result.stopped
    assert result.released or moved


def test_ack_of_nothing_says_nothing_about_due_at() -> None:
    waiting = Cursor(acked=3, attempts=1, due_at=NOW + seconds(30))
    result = settle(waiting, item(2, lease=None), item(None, lease=None, index=1))
    assert (result.cursor, result.released) == (waiting, False)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(1, 8)),
            st.sampled_from(["completed", "failed", "retry", "released", "dlq"]),
            st.sampled_from([LEASE, OTHER, None]),
        ),
        max_size=8,
    ),
    st.integers(0, 4),
    st.sampled_from(["dead", "stop", "drop"]),
    st.integers(0, 2),
)
def test_settle_keeps_its_promises(
    acks: list[tuple[int | None, AckStatus, str | None]], acked: int, policy: str, retry_limit: int
) -> None:
    cursor = leased(acked=acked, to=acked + 3)
    items = [item(seq, status, lease=lease, index=index) for index, (seq, status, lease) in enumerate(acks)]
    result = settle(cursor, *items, retry_limit=retry_limit, on_exhausted=policy)
    assert sorted(outcome.index for outcome in result.outcomes) == list(range(len(items)))
    assert result.cursor.acked >= cursor.acked
    assert result.released == (result.cursor.lease_id is None)
    assert all(cursor.acked < death.seq <= result.cursor.acked for death in result.deaths)
    if all(lease == OTHER for _, _, lease in acks):
        assert result.cursor == cursor


# --- A message's status


def test_message_of_a_queue_without_groups_is_pending() -> None:
    assert rules.message_status(1, [], dead=False, now=NOW) == "pending"


@pytest.mark.parametrize(
    ("cursors", "expected"),
    [
        ([Cursor(acked=3)], "completed"),
        ([Cursor(acked=3), Cursor(acked=2)], "pending"),
        ([Cursor(acked=2), leased(acked=0, to=5)], "processing"),
        ([Cursor(acked=2), leased(acked=0, to=2)], "pending"),
        ([Cursor(acked=2), leased(acked=0, to=5, expires_in=0)], "pending"),
        ([Cursor(acked=4), leased(acked=3, to=5)], "completed"),
    ],
)
def test_status_of_message_3_is_that_of_the_least_finished_group(cursors: list[Cursor], expected: str) -> None:
    assert rules.message_status(3, cursors, dead=False, now=NOW) == expected


def test_dead_letter_wins() -> None:
    assert rules.message_status(3, [Cursor(acked=3)], dead=True, now=NOW) == "dead_letter"
