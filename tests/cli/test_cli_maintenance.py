"""`lockstep maintenance`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_lines import CommandLine

from support.server import running_server


@pytest.fixture
def url(database_dsn: str, tmp_path: Path) -> Iterator[str]:
    """A server of the test's own: the mode is that of a whole database."""
    with running_server(database_dsn, tmp_path) as server:
        yield server.url


def test_pushes_are_buffered_from_on_to_off(url: str, queue: str) -> None:
    lockstep = CommandLine(("--url", url))
    assert lockstep.json("maintenance", "status")["push"] is False
    assert lockstep.json("maintenance", "on")["push"] is True
    assert lockstep.json("push", queue, '"one"')["status"] == "buffered"
    lockstep("push", queue, '"two"')
    shown = lockstep.json("maintenance", "status")
    assert (shown["push"], shown["pop"], shown["buffer"]["messages"]) == (True, False, 2)
    assert lockstep.json("maintenance", "off")["push"] is False
    deadline = time.monotonic() + 30
    while lockstep.json("maintenance", "status")["buffer"]["messages"]:
        assert time.monotonic() < deadline
    assert [one["payload"] for one in lockstep.ndjson("pop", queue, "--batch", "10")] == ["one", "two"]
    assert lockstep("maintenance", "retry").stdout == "0 messages pushed again\n"


def test_a_mode_that_is_set_on_the_database_holds_for_its_servers(url: str, database_dsn: str, queue: str) -> None:
    lockstep, direct = CommandLine(("--url", url)), CommandLine(("--dsn", database_dsn))
    lockstep("push", queue, '"one"')
    assert direct.json("maintenance", "on", "--pop")["pop"] is True
    deadline = time.monotonic() + 30
    while not lockstep.json("maintenance", "status")["pop"]:
        assert time.monotonic() < deadline
    assert lockstep.ndjson("pop", queue) == []
    assert lockstep.json("maintenance", "off", "--pop")["pop"] is False
    assert [one["payload"] for one in lockstep.ndjson("pop", queue)] == ["one"]


def test_duties_are_listed_and_promotion_is_one(url: str) -> None:
    lockstep = CommandLine(("--url", url))
    deadline = time.monotonic() + 30
    shown: dict[str, Any] = {}
    while shown.get("promotion", {}).get("last_effect") is None:  # it is listed from the beginning
        assert time.monotonic() < deadline
        shown = {duty["name"]: duty for duty in lockstep.json("maintenance", "duties")}
    assert shown["promotion"]["last_effect"] == {"messages": 0, "postponed": {}}
    assert "promotion" in lockstep("maintenance", "duties").stdout
