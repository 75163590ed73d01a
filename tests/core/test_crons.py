"""When recurring messages come: expressions, time zones, changes of the clocks, and times that were missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockstep.core.crons import NewCron, batch_of, check_times, due, times_after
from lockstep.errors import InvalidRequest

BERLIN = "Europe/Berlin"


def cron(expression: str, **fields: Any) -> NewCron:
    return NewCron(name="c", queue="q", expression=expression, payload=b"{}", **fields)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def found(expression: str, timezone: str, after: str, count: int) -> list[str]:
    times = islice(times_after(expression, timezone, at(after)), count)
    return [time.strftime("%m-%d %H:%M:%S") for time in times]


def test_times_come_after_and_are_utc() -> None:
    assert found("30 8 * * *", "UTC", "2026-05-01T08:30", 2) == ["05-02 08:30:00", "05-03 08:30:00"]
    assert found("30 8 * * *", BERLIN, "2026-05-01T00:00", 1) == ["05-01 06:30:00"]
    assert found("*/20 * * * * *", "UTC", "2026-05-01T00:00", 3) == [
        "05-01 00:00:20",
        "05-01 00:00:40",
        "05-01 00:01:00",
    ]


def test_fixed_time_in_the_hour_that_is_skipped_comes_right_after_it() -> None:
    """On 2026-03-29 in Berlin, 02:00 to 03:00 does not exist: 01:00 UTC is 03:00."""
    assert found("30 2 * * *", BERLIN, "2026-03-28T00:00", 3) == ["03-28 01:30:00", "03-29 01:00:00", "03-30 00:30:00"]


def test_fixed_time_in_the_hour_that_comes_twice_comes_once() -> None:
    """On 2026-10-25 in Berlin, 02:00 to 03:00 comes twice: at 00:00 and at 01:00 UTC."""
    assert found("30 2 * * *", BERLIN, "2026-10-24T12:00", 2) == ["10-25 00:30:00", "10-26 01:30:00"]
    assert found("30 2 * * *", BERLIN, "2026-10-25T00:30", 1) == ["10-26 01:30:00"]


def test_what_recurs_within_the_hour_follows_the_real_time() -> None:
    assert found("*/30 * * * *", BERLIN, "2026-10-25T00:00", 4) == [
        "10-25 00:30:00",
        "10-25 01:00:00",
        "10-25 01:30:00",
        "10-25 02:00:00",
    ]
    assert found("*/30 * * * *", BERLIN, "2026-03-29T00:30", 2) == ["03-29 01:00:00", "03-29 01:30:00"]


@pytest.mark.parametrize(
    ("expression", "timezone"),
    [
        ("", "UTC"),
        ("* * * *", "UTC"),
        ("* * * * * * *", "UTC"),
        ("60 * * * *", "UTC"),
        ("*/0 * * * *", "UTC"),
        ("a b c d e", "UTC"),
        ("0 0 31 2 *", "UTC"),
        ("0 0 L/L * *", "UTC"),
        ("* * * * *", ""),
        ("* * * * *", "Europe/Nowhere"),
        ("* * * * *", "../../etc/passwd"),
        ("* * * * *", "Europe"),
        ("* * * * *", "/etc/localtime"),
        ("* * * * *", "a\x00b"),
        (f"{','.join(['1'] * 200)} * * * *", "UTC"),
    ],
)
def test_what_is_no_time_is_refused(expression: str, timezone: str) -> None:
    with pytest.raises(InvalidRequest):
        check_times(expression, timezone)


@pytest.mark.parametrize("expression", ["* * * * *", "0 0 29 2 *", "0 9 * * MON-FRI", "0 0 L * *", "0 0 * * 5#2"])
def test_what_is_a_time_is_accepted(expression: str) -> None:
    check_times(expression, BERLIN)


EXPRESSIONS = ["*/7 * * * *", "30 2 * * *", "0 * * * *", "15 1-4 * * *", "0 0 1 * *", "*/25 30 2 * * *"]
ZONES = ["UTC", BERLIN, "Australia/Lord_Howe", "America/New_York"]
# Around a change of the clocks in each of the zones.
BEGINNINGS = [at("2026-03-07T20:00"), at("2026-03-28T20:00"), at("2026-10-24T20:00"), at("2026-11-01T00:00")]


@given(
    expression=st.sampled_from(EXPRESSIONS),
    timezone=st.sampled_from(ZONES),
    begin=st.sampled_from(BEGINNINGS),
    minutes=st.integers(0, 60 * 24 * 2),
)
@example("15 1-4 * * *", BERLIN, at("2026-10-24T20:00"), 300)
def test_policies_agree_on_what_was_missed(expression: str, timezone: str, begin: datetime, minutes: int) -> None:
    """`one` pushes for the last of the times that `all` pushes for, and all of them go on at the same time."""
    now = begin + timedelta(minutes=minutes)
    first = next(times_after(expression, timezone, begin))
    everything = due(cron(expression, timezone=timezone, catch_up="all"), first, now, late_seconds_max=60, limit=9999)
    last = due(cron(expression, timezone=timezone, catch_up="one"), first, now, late_seconds_max=60, limit=1)
    skipped = due(cron(expression, timezone=timezone), first, now, late_seconds_max=60, limit=1)
    assert last.times == everything.times[-1:]
    assert skipped.times == [time for time in last.times if now - time <= timedelta(seconds=60)]
    assert everything.next_at == last.next_at == skipped.next_at
    assert all(time <= now for time in everything.times)
    assert everything.next_at is not None
    assert everything.next_at > now


def test_all_ends_at_the_limit_and_goes_on_from_there() -> None:
    every = cron("* * * * *", catch_up="all")
    part = due(every, at("2026-05-01T10:00"), at("2026-05-01T10:09"), late_seconds_max=60, limit=4)
    assert (len(part.times), part.next_at) == (4, at("2026-05-01T10:04"))


def test_message_of_a_time_has_it_in_its_transaction_id() -> None:
    batch = batch_of(cron("* * * * *", headers={"a": "b"}, kind="k"), [at("2026-05-01T10:00"), at("2026-05-01T10:01")])
    assert batch.columns.transaction_ids == ["cron:c:2026-05-01T10:00:00+00:00", "cron:c:2026-05-01T10:01:00+00:00"]
    assert (batch.columns.headers, batch.columns.kinds) == ([b'{"a":"b"}'] * 2, ["k", "k"])
