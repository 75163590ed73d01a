"""What goes on at a terminal until somebody ends it: `top`, `--watch`, progress."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from datetime import UTC, datetime, timedelta

import pytest
from command_lines import PROGRAM, CommandLine

from lockstep.cli import output
from lockstep.cli.rates import recent_rates, sparkline

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A command on a terminal, with keys to press."""

    def __init__(self, *command: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [*PROGRAM, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env={**environment, "TERM": "xterm-256color"},
        )
        os.close(theirs)
        self.seen = ""

    def until(self, text: str, times: int = 1) -> None:
        """Read until the text was shown so many times."""
        while self._shown().count(text) < times:
            self._read()

    def _shown(self) -> str:
        return ESCAPES.sub("", self.seen)

    def _read(self) -> None:
        try:
            part = os.read(self._ours, 65536)
        except OSError:
            part = b""
        assert part, f"it ended with {self.process.wait(60)}: {self._shown()}"
        self.seen += part.decode(errors="replace")

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def ended(self) -> int:
        _, complaints = self.process.communicate(timeout=60)
        os.close(self._ours)
        assert b"Traceback" not in complaints
        return self.process.returncode


def test_top_without_a_terminal_prints_once(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "-", stdin="1\n2\n3\n")
    lockstep("pop", queue, "--group", "g", "--batch", "2")
    [line] = [one for one in lockstep.json("top", "--limit", "1000") if one["queue"] == queue]
    assert (line["lag"], line["in_flight"], line["leases"], line["dead_letters"]) == (3, 2, 1, 0)
    shown = lockstep("top", "--limit", "1000").stdout
    assert shown.splitlines()[0].split()[:3] == ["queue", "in/s", "out/s"]
    assert queue in shown


@pytest.mark.parametrize("key", ["q", "\x1b"])
def test_top_on_a_terminal_ends_with_a_key(direct: CommandLine, queue: str, key: str) -> None:
    direct("push", queue, "-", stdin="1\n" * 500)
    terminal = Terminal(*direct.target, "top", "--interval", "0.2")
    terminal.until(queue, times=2)
    assert "\x1b[?1049h" in terminal.seen, "on a screen of its own, so that what was there stays"
    terminal.press(key)
    assert terminal.ended() == 0


@pytest.mark.parametrize(
    "command",
    [["queues"], ["groups", "--queue", "{}"], ["partitions", "{}"], ["leases"], ["dlq", "ls"], ["operations", "ls"]],
    ids=lambda command: command[0],
)
def test_list_is_shown_again(direct: CommandLine, queue: str, command: list[str]) -> None:
    direct("push", queue, "1")
    words = [queue if word == "{}" else word for word in command]
    terminal = Terminal(*direct.target, *words, "--watch", "0.1")
    terminal.until("every 0.1 s", times=3)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == 130


def test_watch_without_a_terminal_repeats_the_lines(direct: CommandLine, queue: str) -> None:
    direct("push", queue, "1")
    command = [*PROGRAM, *direct.target, "partitions", queue, "-o", "ndjson", "--watch", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == process.stdout.readline() != ""
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130


def test_watch_has_an_interval_of_its_own(direct: CommandLine) -> None:
    assert "Show the list again at this interval in seconds, by default 2" in " ".join(
        direct("queues", "--help").output.split()
    )
    direct("queues", "--watch", "0", code=2)


def test_queues_on_a_terminal_draw_recent_rates(direct: CommandLine, queue: str) -> None:
    direct("push", queue, "1")
    terminal = Terminal(*direct.target, "queues", "--from", queue, "--limit", "1")
    terminal.until(queue)
    terminal.until("pushed")
    assert terminal.ended() == 0


def test_rates_are_sums_of_samples_over_their_time() -> None:
    from lockstep.core.maintenance import Sample

    now = datetime(2026, 5, 1, 12, tzinfo=UTC)

    class Samples:
        """A client with three samples."""

        def samples(self, **_: object) -> list[Sample]:
            return [
                Sample(at=at, queue="q", seconds=60.0, pushed=60, completed=30, dead=0, pending=1, lag_seconds=0.0)
                for at in (now - timedelta(minutes=39), now - timedelta(minutes=1.5), now - timedelta(minutes=1))
            ]

    rates = recent_rates(Samples(), now)["q"]  # type: ignore[arg-type]
    assert rates.pushed == [1.0, *[0.0] * 18, 1.0]
    assert rates.now == (1.0, 0.5)


def test_sparkline_is_relative_to_its_highest_value() -> None:
    assert sparkline([0, 1, 2, 4]) == "▁▃▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""
    assert sparkline([0, 8], ascii_only=True).isascii()


def test_bar_follows_a_long_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setattr(output, "_ASK_SECONDS", 0.001)
    asked = threading.Event()

    def left() -> int:
        asked.set()
        return 30

    with output.ProgressBar("removing", 100) as bar, bar.following(left, 100):
        assert asked.wait(30)
        assert bar._shown is not None
    assert bar._shown.tasks[0].completed == 70
