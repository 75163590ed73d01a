"""Times on the wire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.wire.times import parse_time, timestamp
from lockstep.errors import InvalidRequest

TWO_HOURS = timezone(timedelta(hours=2))


@given(st.datetimes(timezones=st.just(UTC)))
def test_time_comes_back(at: datetime) -> None:
    assert len(timestamp(at)) == 27
    assert parse_time(timestamp(at), what="at") == at


def test_time_is_written_in_utc_with_microseconds() -> None:
    assert timestamp(datetime(2026, 5, 1, 12, tzinfo=TWO_HOURS)) == "2026-05-01T10:00:00.000000Z"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-05-01T10:00:00Z", datetime(2026, 5, 1, 10, tzinfo=UTC)),
        ("2026-05-01T10:00:00", datetime(2026, 5, 1, 10, tzinfo=UTC)),
        ("2026-05-01T00:00:00+00:00", datetime(2026, 5, 1, tzinfo=UTC)),
        ("2026-05-01T10:00:00 00:00", datetime(2026, 5, 1, 10, tzinfo=UTC)),
        ("2026-05-01T10:00:00.5 02:00", datetime(2026, 5, 1, 8, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-05-01T10:00 0530", datetime(2026, 5, 1, 4, 30, tzinfo=UTC)),
        ("2026-05-01 10:00", datetime(2026, 5, 1, 10, tzinfo=UTC)),
        ("2026-05-01 00:00:00", datetime(2026, 5, 1, tzinfo=UTC)),
        (" 2026-05-01 ", datetime(2026, 5, 1, tzinfo=UTC)),
    ],
)
def test_time_is_read(text: str, at: datetime) -> None:
    """A plus sign that was not encoded has become a space on its way."""
    assert parse_time(text, what="at") == at


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "1700000000", "0001-01-01T00:00:00+23:00"])
def test_other_texts_are_no_times(text: str) -> None:
    with pytest.raises(InvalidRequest, match="at is not an ISO 8601 time"):
        parse_time(text, what="at")
