"""Clients in forked processes, and in several event loops: what belongs to another one is not touched."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep import connect_async
from lockstep.errors import InvalidRequest

FORKING = """
import os, signal, sys, lockstep
from lockstep.errors import InvalidRequest

client = lockstep.connect(sys.argv[1])
unused = lockstep.connect("memory://")
client.push("mails", 1)
producer = client.producer("orders")
producer.push("before")
producer.flush()
for message in client.consume("mails", idle_timeout_seconds=0.01):
    pass
child = os.fork()
if child == 0:
    signal.alarm(60)
    for verb in (lambda: client.push("orders", "child"), lambda: producer.push("child"), producer.flush):
        try:
            verb()
        except InvalidRequest as error:
            assert "forked" in str(error)
        else:
            raise AssertionError("it was not refused")
    client.close()
    unused.push("orders", "child")
    unused.close()
    os._exit(0)
assert os.waitpid(child, 0) == (child, 0)
producer.push("after")
producer.flush()
print(client.pop("orders", batch=10).payloads())
client.close()
"""


@pytest.mark.parametrize("kind", ["memory", "postgres", "http"])
def test_client_that_was_used_stays_with_its_process(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Two processes on one connection would get each other's answers, and a thread does not come along in a fork."""
    fixtures = {"postgres": "database_dsn", "http": "server_url"}
    address = request.getfixturevalue(fixtures[kind]) if kind in fixtures else "memory://"
    script = tmp_path / "forking.py"
    script.write_text(FORKING)
    ended = subprocess.run([sys.executable, str(script), address], capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.returncode) == ("['before', 'after']\n", 0), ended.stderr


@pytest.mark.parametrize("kind", ["memory", "http"])
def test_client_stays_in_its_event_loop(kind: str, request: pytest.FixtureRequest) -> None:
    client = connect_async("memory://" if kind == "memory" else request.getfixturevalue("server_url"))
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(client.push("orders", 1))
        with pytest.raises(InvalidRequest, match="event loop"):
            second.run(client.push("orders", 2))
        first.run(client.close())


def test_client_whose_event_loop_has_ended_can_be_closed() -> None:
    client = connect_async("memory://")
    asyncio.run(client.push("orders", 1))
    asyncio.run(client.close())
