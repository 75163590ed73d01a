"""A table that fills the terminal and is redrawn until q is pressed. Imported only if there is a terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lockstep.cli.output import Column, cells_of, heads_of
from lockstep.errors import Unavailable

_QUIT = (b"q", b"Q", b"\x1b", b"\x04")


def live_table(fetch: Callable[[], Sequence[Any]], columns: Sequence[Column], seconds: float) -> None:
    """Runs until q, Escape or Ctrl-D. While a server is away, the last figures stay."""
    console = Console()
    shown: RenderableType = Text("…")
    with Live(shown, console=console, screen=True, auto_refresh=False) as live, _single_keys():
        while True:
            try:
                shown, said = _table(fetch(), columns, console.height), ""
            except Unavailable as error:
                said = f"  {error.message}"
            head = Text(f"{datetime.now().astimezone():%H:%M:%S}  every {seconds:g} s, q quits{said}", style="dim")
            live.update(Group(head, shown), refresh=True)
            if _quits(seconds):
                return


def _table(records: Sequence[Any], columns: Sequence[Column], height: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold", expand=False)
    for number, head in enumerate(heads_of(columns)):
        table.add_column(Text(head), justify="left" if number == 0 else "right", no_wrap=True)
    for record in records[: max(height - 3, 1)]:
        table.add_row(*map(Text, cells_of(record, columns)))
    return table


@contextmanager
def _single_keys() -> Iterator[None]:
    """Keys arrive immediately, and are not echoed."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _quits(seconds: float) -> bool:
    """Wait; returns whether a key to quit was pressed."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            pressed = os.read(sys.stdin.fileno(), 1)
            if not pressed or pressed in _QUIT:
                return True
    return False
