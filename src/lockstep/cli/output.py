"""What the commands print: tables for people, JSON and NDJSON for programs."""

from __future__ import annotations

import io
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from threading import Event, Thread
from time import monotonic
from typing import Any, Literal

import click
import msgspec

from lockstep.core.crons import Cron
from lockstep.core.messages import Message
from lockstep.core.payloads import decode_raw
from lockstep.core.schedules import Scheduled

Format = Literal["table", "json", "ndjson"]
FORMATS: tuple[Format, ...] = ("table", "json", "ndjson")

Column = str | tuple[str, Callable[[Any], object]]
"""A path of attributes, whose last part is the heading; or a heading, and what stands under it."""

WithPayload = Message | Scheduled | Cron
"""What has a payload, and may have an encoding that says what it is."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True)
class Output:
    """Standard output in one of the formats."""

    format: Format = "table"

    def rows(self, records: Iterable[Any], columns: Sequence[Column], *, empty: str = "nothing found") -> None:
        """A listing. Tables and JSON are written when all is there, NDJSON line by line."""
        if self.format == "ndjson":
            for record in records:
                self.line(record)
        elif self.format == "json":
            click.echo(_pretty([plain(record) for record in records]))
        else:
            lines = list(_table(list(records), columns))
            if lines:
                _echo_table(lines)
            else:
                note(empty)

    def record(self, record: Any, columns: Sequence[Column] | None = None) -> None:
        """One record: a line for each field."""
        if self.format != "table":
            self._data(plain(record))
            return
        cells = _fields(plain(record)) if columns is None else [(_head(c), _cell(_value(record, c))) for c in columns]
        width = max((_width(name) for name, _ in cells), default=0)
        for name, cell in cells:
            click.echo(f"{click.style(_padded(name, width), bold=True)}  {cell or '-'}")

    def done(self, text: str, **data: Any) -> None:
        """What an action did: a sentence, or its data."""
        if self.format == "table":
            click.echo(text)
        else:
            self._data(plain(data))

    def line(self, record: Any, columns: Sequence[Column] = ()) -> None:
        """One record of a stream, on a line of its own."""
        if self.format == "table":
            click.echo("  ".join(_cell(_value(record, column)) for column in columns))
        else:
            click.echo(_encoded(plain(record)).decode(errors="replace"))

    def _data(self, data: Any) -> None:
        click.echo(_pretty(data) if self.format == "json" else _encoded(data).decode(errors="replace"))


def prepare_stdout() -> None:
    """See that whatever is to be printed can be."""
    unbuffered = getattr(sys.stdout, "buffer", None)
    if isinstance(unbuffered, io.RawIOBase):
        # Without a buffer (PYTHONUNBUFFERED) Python drops, in silence, what a pipe or a disk did not take of a write.
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(unbuffered), sys.stdout.encoding, sys.stdout.errors, line_buffering=True
        )
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # An old locale does not know every character, and the name of a file may be none that UTF-8 knows.
        sys.stdout.reconfigure(errors="backslashreplace")


def counted(number: int, noun: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def going_on(what: str) -> Iterator[None]:
    """Shows, to somebody at a terminal, that a call which tells nothing on the way goes on, and since when."""
    if not at_screen():
        yield
        return
    ended = Event()
    ticking = Thread(target=_tick, args=(what, ended), daemon=True)
    ticking.start()
    try:
        yield
    finally:
        ended.set()
        ticking.join()


def _tick(what: str, ended: Event) -> None:
    began = monotonic()
    shown = ""
    while not ended.is_set():
        shown = f"{what} … {monotonic() - began:.0f} s"
        click.echo(f"\r{shown}", err=True, nl=False)
        ended.wait(1)
    click.echo(f"\r{' ' * len(shown)}\r", err=True, nl=False)


def at_screen() -> bool:
    """Whether somebody sees remarks and progress as they come. Standard error may have been closed."""
    return sys.stderr is not None and sys.stderr.isatty()


def note(text: str) -> None:
    """A remark for people, out of the way of the output."""
    click.echo(text, err=True)


# --- Records as data ----------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A record as JSON knows it, with payloads as the JSON that they are."""
    if isinstance(value, WithPayload):
        return _message(value)
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _message(message: WithPayload) -> dict[str, Any]:
    shown = {name: getattr(message, name) for name in message.__struct_fields__}
    value = json_payload(message)
    if value is None:
        shown["payload_base64"] = shown.pop("payload")  # bytes become base64
    else:
        shown["payload"] = value
    return shown


def json_payload(message: WithPayload) -> msgspec.Raw | None:
    """The payload, if it is JSON."""
    if message.encoding is not None:
        return None
    try:
        return decode_raw(message.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def payload_text(message: WithPayload, *, length_max: int | None = None) -> str:
    """The payload on one line, for people."""
    if json_payload(message) is None:
        return f"<{len(message.payload)} bytes, {message.encoding or 'not JSON'}>"
    text = message.payload.decode(errors="replace")
    return text if length_max is None or len(text) <= length_max else f"{text[: length_max - 1]}…"


def _encoded(data: Any) -> bytes:
    return msgspec.json.encode(data)


def _pretty(data: Any) -> str:
    return msgspec.json.format(_encoded(data), indent=2).decode(errors="replace")


# --- Tables -------------------------------------------------------------------------------------------------


def _table(records: list[Any], columns: Sequence[Column]) -> Iterable[list[str]]:
    if records:
        yield [_head(column) for column in columns]
        for record in records:
            yield [_cell(_value(record, column)) for column in columns]


def _echo_table(lines: list[list[str]]) -> None:
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    for number, cells in enumerate(lines):
        # The last column may be as long as it likes.
        line = "  ".join([*map(_padded, cells[:-1], widths[:-1]), cells[-1]]).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 else line)


def _head(column: Column) -> str:
    name = column.rpartition(".")[2] if isinstance(column, str) else column[0]
    return name.replace("_", " ")


def _value(record: Any, column: Column) -> object:
    return reduce(getattr, column.split("."), record) if isinstance(column, str) else column[1](record)


def _fields(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """All fields, those of records inside by their path."""
    cells: list[tuple[str, str]] = []
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            cells += _fields(value, f"{prefix}{name}.")
        else:
            cells.append((prefix + name, _cell(value)))
    return cells


def _cell(value: object) -> str:
    """A value for people. What could steer a terminal is made visible instead."""
    if value is None:
        text = "-"
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, float):
        text = repr(round(value, 3))
    elif isinstance(value, datetime):
        text = value.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    elif isinstance(value, msgspec.Raw):
        text = bytes(value).decode(errors="replace")
    elif isinstance(value, str):
        text = value
    else:
        text = _encoded(value).decode(errors="replace")
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))
