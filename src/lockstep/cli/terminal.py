"""Tables, fields and progress on a terminal, laid out by rich.

Only output.py imports this module, and only with a terminal: importing rich takes a fifth of a command's start-up time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import progress
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_LAST_WIDTH_MIN = 16


def table(head: Sequence[str], lines: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    """A table; or a block of lines for each row, if the terminal is too narrow for the table."""
    widths = [max(map(cell_len, column)) for column in zip(head, *lines, strict=True)]
    needed = sum(widths[:-1]) + 2 * (len(widths) - 1) + min(widths[-1], _LAST_WIDTH_MIN)
    if needed > Console().width:
        return "\n".join([fields(list(zip(head, cells, strict=True))) for cells in lines])
    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name, right in zip(head, numeric, strict=True):
        shown.add_column(Text(name), justify="right" if right else "left", overflow="fold")
    for cells in lines:
        shown.add_row(*map(Text, cells))
    return _rendered(shown)


def fields(cells: Sequence[tuple[str, str]]) -> str:
    """A line for each name and value."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, cell in cells:
        grid.add_row(Text(name), Text(cell))
    return _rendered(grid)


def styled(text: str, style: str) -> str:
    """The text on one line, in a rich style."""
    return _rendered(Text(text, style=style)).removesuffix("\n")


def _rendered(shown: RenderableType) -> str:
    """Text for click to print, so that a closed terminal raises the same error as for other output."""
    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(shown)
    return "".join([f"{line.rstrip()}\n" for line in capture.get().splitlines()])


class _Rate(progress.ProgressColumn):
    """Steps per second."""

    def render(self, task: progress.Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


def progress_bar(*, bounded: bool) -> progress.Progress:
    """A spinner, and a bar if the end is known."""
    console = Console(stderr=True)
    spinner = progress.SpinnerColumn("dots" if console.encoding.startswith("utf") else "line")
    columns = [spinner, progress.TextColumn("{task.description}", markup=False)]
    if bounded:
        columns += [progress.BarColumn(), progress.MofNCompleteColumn(), _Rate(), progress.TimeRemainingColumn()]
    return progress.Progress(
        *columns,
        progress.TimeElapsedColumn(),
        console=console,
        transient=True,
        # Other output goes above the bar; if standard output is a pipe, it goes there as usual.
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
    )
