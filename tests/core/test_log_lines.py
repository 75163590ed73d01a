"""Log lines for people: what a program shows that has set up no logging, and what the formatter gives."""

from __future__ import annotations

import logging
import subprocess
import sys

from lockstep import LogFormatter

_FAILS = """
import lockstep, logging
{set_up}
with lockstep.connect("memory://") as client:
    client.push("orders", 1)

    @client.worker("orders")
    def handle(message):
        client.stop()
        raise ValueError("no\\nstock")

    client.run(stop_on_signals=False)
"""


def _said(set_up: str = "") -> str:
    """What a program prints whose handler fails."""
    program = _FAILS.replace("{set_up}", set_up)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_program_without_logging_shows_what_happened() -> None:
    [line] = [line for line in _said().splitlines() if "message_failed" in line]
    assert line.startswith("WARNING lockstep.client: The handler raised an error;")
    assert "queue=orders" in line
    assert r"error=ValueError: no\nstock" in line


def test_program_with_logging_of_its_own_shows_each_event_once() -> None:
    said = _said("logging.basicConfig(format='mine %(message)s')")
    assert said.count("message_failed") == 1
    assert "mine message_failed" in said


def test_formatter_serves_the_handlers_of_a_program() -> None:
    set_up = "handler = logging.StreamHandler(); handler.setFormatter(lockstep.LogFormatter())"
    said = _said(f"{set_up}; logging.getLogger().addHandler(handler)")
    assert said.count("[message_failed queue=orders partition=Default seq=1 attempt=1") == 1


def test_record_of_somebody_else_is_shown_as_it_is() -> None:
    record = logging.makeLogRecord({"name": "other.x", "levelname": "ERROR", "msg": "spool_damaged"})
    assert LogFormatter().format(record) == "ERROR other.x: spool_damaged [spool_damaged]"
