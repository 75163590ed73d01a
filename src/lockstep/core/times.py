"""Valid times and durations."""

from __future__ import annotations

from datetime import UTC, datetime

from lockstep.errors import InvalidRequest

_ENDS = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))


def check_time(at: object, *, what: str) -> datetime:
    if not isinstance(at, datetime):
        raise InvalidRequest(f"{what} must be a datetime, not {type(at).__name__}")
    if at.utcoffset() is None:
        raise InvalidRequest(f"{what} must have a time zone: {at.isoformat()}")
    try:
        at.astimezone(UTC)
    except OverflowError:
        raise InvalidRequest(f"{what} is out of range: {at.isoformat()}") from None
    return at


def check_kept_time(at: object, *, what: str) -> None:
    """A time to store. The first and the last representable times are refused: a database may treat them as
    infinities.
    """
    if check_time(at, what=what) in _ENDS:
        raise InvalidRequest(f"{what} is out of range: {at}")


def check_seconds(seconds: object, *, what: str, high: float) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidRequest(f"{what} must be a number of seconds, not {type(seconds).__name__}")
    if not 0 <= seconds <= high:
        raise InvalidRequest(f"{what} must be between 0 and {high} seconds, not {seconds}")
