"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2026, 5, 1, 10, 0, tzinfo=UTC)


class SetClock:
    """Returns the same aware UTC time until it is moved; stores get it as their `clock`."""

    def __init__(self, start: datetime = START) -> None:
        self.now = start

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> datetime:
        """Move forward; returns the new time."""
        assert seconds >= 0, "time does not run backwards"
        self.now += timedelta(seconds=seconds)
        return self.now

    def set_back(self, seconds: float) -> datetime:
        """Move back, as when a database moves to a machine whose clock is behind; returns the new time."""
        self.now -= timedelta(seconds=seconds)
        return self.now

    def ago(self, seconds: float) -> datetime:
        return self.now - timedelta(seconds=seconds)

    def ahead(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)
