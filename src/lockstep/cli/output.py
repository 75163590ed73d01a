"""What the commands print: tables for people, JSON and NDJSON for programs."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from types import ModuleType
from typing import Any, Literal, Self

import click
import msgspec

from lockstep.core.crons import Cron
from lockstep.core.messages import Message
from lockstep.core.payloads import decode_raw
from lockstep.core.schedules import Scheduled
from lockstep.errors import LockstepError

Format = Literal["table", "json", "ndjson"]
FORMATS: tuple[Format, ...] = ("table", "json", "ndjson")

Column = str | tuple[str, Callable[[Any], object]]
"""A path of attributes, the last of which is the heading; or a heading and a function that gives its values."""

WithPayload = Message | Scheduled | Cron
"""A record with a payload, and possibly with an encoding that names its format."""

_ASK_SECONDS = 1.0
"""How often the progress of a long call is queried."""
_NUMBER = re.compile(r"-?[0-9.]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True)
class Output:
    """Standard output in the selected format."""

    format: Format = "table"

    def rows(
        self, records: Iterable[Any], columns: Sequence[Column], *, empty: str | Callable[[], str] = "nothing found"
    ) -> None:
        """A listing. Tables and JSON are written when all records are there, NDJSON line by line. `empty` is the remark
        on a table without rows; as a function it is called after all records were read.
        """
        if self.format == "ndjson":
            for record in records:
                self.line(record)
        elif self.format == "json":
            click.echo(_pretty([plain(record) for record in records]))
        else:
            lines = [cells_of(record, columns) for record in records]
            if lines:
                _echo_table(heads_of(columns), lines)
            else:
                note(empty if isinstance(empty, str) else empty())

    def record(self, record: Any, columns: Sequence[Column] | None = None) -> None:
        """One record, with one line per field."""
        if self.format != "table":
            self._data(plain(record))
            return
        cells = _fields(plain(record)) if columns is None else [(_head(c), _cell(_value(record, c))) for c in columns]
        _echo_fields([(name, cell or "-") for name, cell in cells])

    def done(self, text: str, **data: Any) -> None:
        """The result of an action: a sentence, or its data."""
        if self.format == "table":
            click.echo(text)
        else:
            self._data(plain(data))

    def line(self, record: Any, columns: Sequence[Column] = ()) -> None:
        """One record of a stream, on one line."""
        if self.format == "table":
            click.echo("  ".join(_cell(_value(record, column)) for column in columns))
        else:
            click.echo(_encoded(plain(record)).decode(errors="replace"))

    def _data(self, data: Any) -> None:
        click.echo(_pretty(data) if self.format == "json" else _encoded(data).decode(errors="replace"))


def prepare_stdout() -> None:
    """Make sure that any output can be printed."""
    unbuffered = getattr(sys.stdout, "buffer", None)
    if isinstance(unbuffered, io.RawIOBase):
        # Without a buffer (PYTHONUNBUFFERED), Python silently drops what a pipe or a disk did not accept of a write.
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(unbuffered), sys.stdout.encoding, sys.stdout.errors, line_buffering=True
        )
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # An old locale lacks characters, and a file name need not be valid UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")


def counted(number: int | None, noun: str) -> str:
    """`1 message`, `2 messages`; without a number, `an unknown number of messages`."""
    if number is None:
        return f"an unknown number of {noun}s"
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class ProgressBar:
    """Shows progress, speed and, if the end is known, the remaining time on a terminal, and clears that at the end."""

    def __init__(self, label: str, total: float | None = None) -> None:
        self._shown = _terminal().progress_bar(bounded=total is not None) if at_screen() else None
        self._task = self._shown.add_task(label, total=total) if self._shown else None

    def __enter__(self) -> Self:
        if self._shown is not None:
            self._shown.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.stop()

    def advance(self, steps: int) -> None:
        if self._shown is not None and self._task is not None:
            self._shown.advance(self._task, steps)

    @contextmanager
    def following(self, left: Callable[[], int | None], total: int | None) -> Iterator[None]:
        """While the block runs one long call, query how much is left of a total, and show it."""
        if self._shown is None or total is None:
            yield
            return
        ended = threading.Event()
        asking = threading.Thread(target=self._follow, args=(left, total, ended), daemon=True)
        asking.start()
        try:
            yield
        finally:
            ended.set()
            asking.join()

    def _follow(self, left: Callable[[], int | None], total: int, ended: threading.Event) -> None:
        while not ended.wait(_ASK_SECONDS):
            with suppress(LockstepError):  # the call itself reports errors
                remaining = left()
                if remaining is not None and self._shown is not None and self._task is not None:
                    self._shown.update(self._task, completed=max(total - remaining, 0))

    def show(self, text: str) -> None:
        """Replace the label."""
        if self._shown is not None and self._task is not None:
            self._shown.update(self._task, description=text)

    def say(self, text: str) -> None:
        """Replace the label; without a terminal, print the text on a line of its own."""
        if self._shown is None:
            note(text)
        self.show(text)


def at_screen() -> bool:
    """Whether a user sees notes and progress while they are written. Standard error may be closed."""
    return sys.stderr is not None and sys.stderr.isatty()


def note(text: str) -> None:
    """A note for people, separate from the output."""
    click.echo(text, err=True)


# --- Records as data ----------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A record in JSON types; payloads are included as JSON values."""
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


_RICH_ROWS_MAX = 200
"""Rich takes a millisecond per row, so longer tables are laid out plainly, as in a pipe."""


def _echo_table(head: list[str], lines: list[list[str]]) -> None:
    if on_terminal() and len(lines) <= _RICH_ROWS_MAX:
        columns = zip(*lines, strict=True)
        numeric = [all(cell == "-" or _NUMBER.fullmatch(cell) for cell in column) for column in columns]
        click.echo(_terminal().table(head, lines, numeric), nl=False)
        return
    widths = [max(map(_width, column)) for column in zip(head, *lines, strict=True)]
    for cells in (head, *lines):
        # The last column is not padded.
        click.echo("  ".join([*map(_padded, cells[:-1], widths[:-1]), cells[-1]]).rstrip())


def _echo_fields(cells: Sequence[tuple[str, str]]) -> None:
    if on_terminal():
        click.echo(_terminal().fields(cells), nl=False)
        return
    width = max((_width(name) for name, _ in cells), default=0)
    for name, cell in cells:
        click.echo(f"{_padded(name, width)}  {cell}")


def clear_screen() -> bool:
    """Clear the terminal; False without one, in which case earlier output stays."""
    if on_terminal():
        click.echo("\x1b[H\x1b[2J", nl=False)
        return True
    return False


def writes_ascii() -> bool:
    """Whether standard output accepts only ASCII."""
    return not (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")


def heads_of(columns: Sequence[Column]) -> list[str]:
    return [_head(column) for column in columns]


def cells_of(record: Any, columns: Sequence[Column]) -> list[str]:
    return [_cell(_value(record, column)) for column in columns]


def styled(text: str, style: str) -> str:
    """The text in a rich style; unchanged if standard output is not a terminal."""
    return _terminal().styled(text, style) if on_terminal() else text


def on_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def _terminal() -> ModuleType:
    from lockstep.cli import terminal

    return terminal


def _head(column: Column) -> str:
    name = column.rpartition(".")[2] if isinstance(column, str) else column[0]
    return name.replace("_", " ")


def _value(record: Any, column: Column) -> object:
    return reduce(getattr, column.split("."), record) if isinstance(column, str) else column[1](record)


def _fields(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """All fields, those of nested records by their path."""
    cells: list[tuple[str, str]] = []
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            cells += _fields(value, f"{prefix}{name}.")
        else:
            cells.append((prefix + name, _cell(value)))
    return cells


def _cell(value: object) -> str:
    """A value for people. Characters that could control a terminal are made visible."""
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
    from rich.cells import cell_len  # loaded only for other alphabets

    return cell_len(text)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))
