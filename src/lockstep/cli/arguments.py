"""Arguments that several commands share: times, places, headers, limits; and the confirmation of irreversible
actions."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from lockstep.cli.output import Column
from lockstep.core.messages import NewSchedule
from lockstep.core.records import Position
from lockstep.errors import LockstepError

T = TypeVar("T")

PAGE = 1000
"""Number of items that a listing requests at a time; every server allows at least this many."""

_AGO = re.compile(r"([0-9]{1,9})([smhd])")
_PLACES = {"start": Position("start"), "end": Position("end"), "current": Position("current")}
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def time(value: str) -> datetime:
    """An instant: ISO 8601, in local time unless it names a zone; or a time ago, such as `90s`, `15m`, `2h`, `7d`."""
    try:
        ago = _AGO.fullmatch(value)
        if ago:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        return datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        text = f"{value!r} is no time; give one as 2026-05-01T10:00:00Z, or how long ago: 90s, 15m, 2h, 7d"
        raise click.BadParameter(text) from error


def later(value: str) -> NewSchedule:
    """When to deliver something: ISO 8601, in local time unless it names a zone; or a time from now, such as `90s`,
    `15m`, `2h`, `7d`."""
    try:
        wait = _AGO.fullmatch(value)
        if wait:
            return NewSchedule(delay_seconds=timedelta(**{_UNITS[wait[2]]: int(wait[1])}).total_seconds())
        return NewSchedule(deliver_at=datetime.fromisoformat(value).astimezone(UTC))
    except (ValueError, OverflowError) as error:
        text = f"{value!r} is no time; give one as 2026-05-01T10:00:00Z, or in how long: 90s, 15m, 2h, 7d"
        raise click.BadParameter(text) from error


def ahead(value: str) -> datetime:
    """A future instant, in the syntax of `later`."""
    when = later(value)
    if when.deliver_at is not None:
        return when.deliver_at
    try:
        return datetime.now(UTC) + timedelta(seconds=when.delay_seconds or 0)
    except OverflowError as error:
        raise click.BadParameter(f"{value!r} is too far ahead") from error


def place(value: str) -> Position:
    """The target of a seek: `start`, `end`, `current`, `seq:N` or a time."""
    if value in _PLACES:
        return _PLACES[value]
    if value.startswith("seq:"):
        seq = value.removeprefix("seq:")
        if not (seq.isascii() and seq.isdigit()):
            raise click.BadParameter(f"{value!r} names no seq; give one as seq:17")
        return Position("seq", seq=int(seq))
    return Position("time", at=time(value))


def begin(value: str) -> str | datetime:
    """Where a group starts on a queue that it reads for the first time: `all`, `new` or a time."""
    return value if value in ("all", "new") else time(value)


def header(value: str) -> tuple[str, str]:
    """A header as `name=value`."""
    name, equals, text = value.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{value!r} is no header; give one as name=value")
    return name, text


class Seconds(click.FloatRange):
    """A number of seconds within limits. click's ranges accept `nan` for any limits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


limit_option = click.option(
    "--limit",
    type=click.IntRange(min=1),
    # A number beyond Python's maximum size means all of them.
    callback=lambda _ctx, _param, value: min(value, sys.maxsize),
    default=100,
    show_default=True,
    help="Most rows that are shown.",
)
exact_option = click.option("--exact", is_flag=True, help="Count everything now, however long it takes.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def seconds_old(at: datetime | None) -> float | None:
    """How long ago a time was; None without a time."""
    return None if at is None else round(max((datetime.now(UTC) - at).total_seconds(), 0.0), 3)


def figure(name: str, value: Callable[[Any], object] | None = None, *, known_by: str | None = None) -> Column:
    """A column for a figure, with `?` if it is unknown. The attribute `known_by`, if given, says whether it is
    known.
    """

    def shown(record: Any) -> object:
        if getattr(record, known_by or name) is None:
            return "?"
        return getattr(record, name) if value is None else value(record)

    return name, shown


def at_terminal() -> bool:
    """Whether a user can type at standard input, which is None in a program started without one."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Continue if the user confirms. Without a terminal there is no prompt, so --yes is needed."""
    if yes:
        return
    if not at_terminal():
        raise click.UsageError(f"{question} There is no terminal to ask on: say --yes.")
    if not click.confirm(question, err=True):
        raise LockstepError("not confirmed, so nothing was changed")


def paged(fetch: Callable[[T | None, int], Sequence[T]], limit: int) -> Iterator[T]:
    """Up to `limit` records, page by page; `fetch` gets the last record so far and the size of a page."""
    last: T | None = None
    while limit > 0:
        size = min(limit, PAGE)
        page = fetch(last, size)
        yield from page
        if len(page) < size:
            return
        last = page[-1]
        limit -= size
