"""What somebody at a terminal sees, and what never reaches one that asks for less."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

import pytest
from command_lines import PROGRAM, CommandLine

from lockstep.cli import output

STYLES = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(*command: str, columns: int = 200, rows: int = 50, **environment: str) -> str:
    """What the command prints to a terminal of a size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment = known | {"TERM": "xterm-256color"} | environment
    process = subprocess.Popen(
        [*PROGRAM, *command], stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, env=environment
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65536):
            said += part
    except OSError:  # Linux says so when the last writer has closed it
        pass
    os.close(ours)
    _, complaints = process.communicate(timeout=60)
    assert complaints == b""
    return said.decode().replace("\r\n", "\n")


@pytest.fixture
def filled(direct: CommandLine, queue: str) -> list[str]:
    """The command that lists three partitions."""
    for name in ("a", "日本", "[red]c[/red]"):
        direct("push", queue, "-", "-p", name, stdin="1\n" * (12 if name == "a" else 1))
    return [*direct.target, "partitions", queue]


def test_table_on_a_terminal_has_a_bold_head_and_aligned_columns(filled: list[str]) -> None:
    shown = on_terminal(*filled)
    assert shown.startswith("\x1b[1m")
    head, *lines = STYLES.sub("", shown).splitlines()
    assert head.split()[:3] == ["name", "id", "messages"]
    assert [line.split()[0] for line in lines] == ["[red]c[/red]", "a", "日本"]
    assert lines[1].index(" 12") + 3 == head.index("messages") + 8, "numbers end where their heading ends"
    assert all(line == line.rstrip() for line in lines)


def test_narrow_terminal_has_a_block_for_each_row(filled: list[str]) -> None:
    lines = STYLES.sub("", on_terminal(*filled, columns=40)).splitlines()
    assert lines[0].split() == ["name", "[red]c[/red]"]
    assert lines.count("") == 2, "an empty line between two rows"
    assert max(map(len, lines)) <= 40


def test_a_long_table_is_laid_out_as_in_a_pipe(filled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    head, *_ = STYLES.sub("", on_terminal(*filled)).splitlines()
    plain = CommandLine()(*filled).stdout
    assert plain.splitlines()[0] != head, "the columns have other places"
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    monkeypatch.setattr(output, "_RICH_ROWS_MAX", 2)
    assert CommandLine()(*filled).stdout == plain


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["no-color", "dumb"])
def test_no_colours_where_none_are_wanted(direct: CommandLine, environment: dict[str, str]) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]")
    assert colour.search(on_terminal(*direct.target, "doctor"))
    assert not colour.search(on_terminal(*direct.target, "doctor", **environment))


def test_terminal_of_an_old_encoding_gets_what_it_can_show(filled: list[str]) -> None:
    assert "\\u65e5\\u672c" in on_terminal(*filled, PYTHONIOENCODING="latin-1")


def test_fields_fold_below_their_column(direct: CommandLine, queue: str) -> None:
    direct("push", queue, "1")
    lines = STYLES.sub("", on_terminal(*direct.target, "queue", "show", queue, columns=60)).splitlines()
    assert max(map(len, lines)) <= 60
    at = next(number for number, line in enumerate(lines) if line.startswith("created_at"))
    assert re.fullmatch(r" +\d\d:\d\d:\d\d\.\d{3}Z", lines[at + 1]), "the rest stands below its beginning"
