"""Times on the wire: ISO 8601 in UTC, with microseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated

from msgspec import Meta

from lockstep.errors import InvalidRequest

Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""A time in a request."""

_UNENCODED_PLUS = re.compile(r"(:\d\d(?:\.\d+)?) (\d\d:?\d\d)$")
"""The offset of a time in which a client did not encode the plus sign, so that it arrives as a space."""


@lru_cache(maxsize=1024)
def timestamp(at: datetime) -> str:
    """2026-05-01T10:00:00.123456Z"""
    # Cached, because consecutive requests show the time of the same segment. Not strftime, which writes years before
    # 1000 with fewer digits than can be parsed again.
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def timestamp_or_none(at: datetime | None) -> str | None:
    return None if at is None else timestamp(at)


def parse_time(text: str, *, what: str) -> datetime:
    """The instant of an ISO 8601 text; UTC if it has no offset. Raises InvalidRequest."""
    try:
        at = datetime.fromisoformat(_UNENCODED_PLUS.sub(r"\1+\2", text.strip()))
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(f"{what} is not an ISO 8601 time: {text[:64]!r}") from None


def parse_time_or_none(text: str | None, *, what: str) -> datetime | None:
    """None for a missing or empty text."""
    return parse_time(text, what=what) if text else None


def seconds_since(at: datetime | None, now: datetime) -> float:
    """The age in seconds; 0 for None, and for times in the future because of clock differences."""
    return 0.0 if at is None else max((now - at).total_seconds(), 0.0)
