"""`lockstep maintenance`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from command_lines import CommandLine

from support.embedded_tools import query
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


def test_server_stops_draining_after_a_failover_that_lost_what_it_had_drained(
    url: str, database_dsn: str, queue: str
) -> None:
    lockstep = CommandLine(("--url", url))
    buffer_and_drain(lockstep, queue, '"lost"')
    wait_for_buffer(lockstep, "messages", 0)
    query(database_dsn, "update lockstep.spool set drained_to = 0")
    buffer_and_drain(lockstep, queue, '"two"')
    wait_for_buffer(lockstep, "messages", 1)
    deadline = time.monotonic() + 30
    while not (buffer := lockstep.json("maintenance", "status")["buffer"])["bytes_lost"]:
        assert time.monotonic() < deadline
    assert lockstep.json("push", queue, '"three"')["status"] == "buffered"
    with urlopen(f"{url}/api/v1/status") as answer:
        status = json.load(answer)
    assert status["bufferBytesLost"] == buffer["bytes_lost"]
    findings = lockstep.json("doctor", code=1)
    [found] = [finding for finding in findings if finding["subject"] == "buffer"]
    assert found["text"] == f"spool_ahead: {buffer['waiting_for']}"
    assert lockstep("maintenance", "accept").stdout == f"{buffer['bytes_lost']} lost bytes accepted\n"
    wait_for_buffer(lockstep, "messages", 0)
    assert lockstep.json("maintenance", "status")["buffer"]["bytes_lost"] == 0
    assert lockstep("maintenance", "accept").stdout == "0 lost bytes accepted\n"


def buffer_and_drain(lockstep: CommandLine, queue: str, payload: str) -> None:
    lockstep("maintenance", "on")
    assert lockstep.json("push", queue, payload)["status"] == "buffered"
    lockstep("maintenance", "off")


def wait_for_buffer(lockstep: CommandLine, field: str, value: int) -> None:
    deadline = time.monotonic() + 30
    while lockstep.json("maintenance", "status")["buffer"][field] != value:
        assert time.monotonic() < deadline


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
