"""Recurring messages. A cron expression says when; a policy says what happens to times that were missed.

The expression has the usual five fields (minute, hour, day of month, month, day of week), or six with seconds in front,
and is evaluated in a time zone. When the clocks change, it behaves as Debian's cron does. A job at a fixed time runs
right after an hour that is skipped, and only once in an hour that occurs twice. A job that recurs within the hour (`*`
in minutes or hours), or that has seconds, follows real time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from lockstep.core.messages import Batch, Columns
from lockstep.core.names import DEFAULT_PARTITION
from lockstep.errors import InvalidRequest

CatchUp = Literal["skip", "one", "all"]

CRON_NAME_LENGTH_MAX = 200
"""Shorter than other names, because it is part of a transaction id together with a time."""
EXPRESSION_LENGTH_MAX = 255


class NewCron(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a recurring message."""

    name: str
    queue: str
    expression: str
    payload: bytes
    partition: str = DEFAULT_PARTITION
    timezone: str = "UTC"
    """An IANA name, such as Europe/Berlin."""
    catch_up: CatchUp = "skip"
    """Handling of times that passed while no server was running. `skip` pushes nothing for them, except for the last
    one if it is recent (setting cron_late_seconds_max); `one` pushes once for all of them; `all` pushes once for each.
    """
    enabled: bool = True
    kind: str | None = None
    reference: str | None = None
    encoding: str | None = None
    headers: dict[str, str] | None = None


class Cron(NewCron, frozen=True, kw_only=True):
    """A recurring message and its state."""

    created_at: datetime
    next_at: datetime | None
    """None while it is disabled, and when no time is left."""
    last_at: datetime | None = None
    """The time for which it was last pushed."""


def check_times(expression: str, timezone: str) -> None:
    """Raises InvalidRequest for an invalid expression, an unknown time zone, or a time that never comes."""
    zone = _zone(timezone)
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise InvalidRequest(f"a cron expression has at most {EXPRESSION_LENGTH_MAX} characters")
    try:
        next(CronSim(expression, datetime(2024, 1, 1, tzinfo=zone)))
    except (CronSimError, ValueError) as error:
        raise InvalidRequest(f"not a cron expression: {expression[:64]!r}: {error}") from error
    except StopIteration:
        raise InvalidRequest(f"the cron expression {expression[:64]!r} means a day that never comes") from None


def _zone(timezone: str) -> ZoneInfo:
    try:
        return ZoneInfo(timezone)
    # For a text that looks like a path, or names a directory of the database, ZoneInfo raises ValueError or OSError.
    except (KeyError, ValueError, OSError):
        raise InvalidRequest(f"there is no time zone {timezone[:64]!r}") from None


def times_after(expression: str, timezone: str, after: datetime) -> Iterator[datetime]:
    """The times of an expression after a time, in UTC; ends when there are no more."""
    for time in CronSim(expression, after.astimezone(_zone(timezone))):
        at = time.astimezone(UTC)
        # In an hour that occurs twice, cron returns the time just handled again for a job at a fixed time.
        if at > after:
            yield at


def next_time(cron: NewCron, after: datetime) -> datetime | None:
    return next(times_after(cron.expression, cron.timezone, after), None)


@dataclass(frozen=True, slots=True)
class Due:
    """What to push now for a recurring message."""

    times: list[datetime]
    next_at: datetime | None


def due(cron: NewCron, next_at: datetime, now: datetime, *, late_seconds_max: float, limit: int) -> Due:
    """The times to push for between `next_at` and `now`, and the next time.

    With `all`, at most `limit` times; the next time may be due as well then.
    """
    if next_at > now:
        return Due([], next_at)
    if cron.catch_up == "all":
        return _every(cron, next_at, now, limit)
    last = _last_before(cron, next_at, now)
    wanted = cron.catch_up == "one" or now - last <= timedelta(seconds=late_seconds_max)
    return Due([last] if wanted else [], next_time(cron, now))


def _every(cron: NewCron, next_at: datetime, now: datetime, limit: int) -> Due:
    passed: list[datetime] = []
    for at in chain([next_at], times_after(cron.expression, cron.timezone, next_at)):
        if at > now or len(passed) == limit:
            return Due(passed, at)
        passed.append(at)
    return Due(passed, None)


def _last_before(cron: NewCron, next_at: datetime, now: datetime) -> datetime:
    """The last time up to `now`; searched backwards, because many times may precede it."""
    last = max(_found_backwards(cron, now) or next_at, next_at)
    # In an hour that occurs twice, searching backwards skips the first half.
    for at in times_after(cron.expression, cron.timezone, last):
        if at > now:
            break
        last = at
    return last


def _found_backwards(cron: NewCron, now: datetime) -> datetime | None:
    backwards = CronSim(cron.expression, (now + timedelta(seconds=1)).astimezone(_zone(cron.timezone)), reverse=True)
    for time in islice(backwards, 3):
        at = time.astimezone(UTC)
        if at <= now:
            return at
    return None


def batch_of(cron: NewCron, times: list[datetime]) -> Batch:
    """The messages for these times. Their transaction ids prevent a second push for the same time."""
    count = len(times)
    columns = Columns([cron.payload] * count, transaction_ids=[transaction_id(cron.name, at) for at in times])
    if cron.kind is not None:
        columns.kinds = [cron.kind] * count
    if cron.reference is not None:
        columns.references = [cron.reference] * count
    if cron.encoding is not None:
        columns.encodings = [cron.encoding] * count
    if cron.headers is not None:
        columns.headers = [msgspec.json.encode(cron.headers)] * count
    return Batch(cron.queue, cron.partition, columns)


def transaction_id(name: str, at: datetime) -> str:
    return f"cron:{name}:{at.isoformat()}"
