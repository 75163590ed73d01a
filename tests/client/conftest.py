"""What clients connect to: an engine in this process, or a server, each on the set clock."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from lockstep.config import Config
from lockstep.engine.engine import Engine
from lockstep.storage.memory import MemoryStore
from support.clock import SetClock
from support.databases import Databases
from support.flaky import Flaky, flaky_server

# Waiting pops look at the store now and then, because a set clock tells nobody that it was moved.
CONFIG = Config(pop_check_seconds_min=0.005, pop_check_seconds_max=0.02)


@pytest.fixture
def memory_engine(clock: SetClock) -> Engine:
    """Not open yet."""
    return Engine(MemoryStore(clock=clock), CONFIG)


@pytest.fixture(params=["memory", "postgres", "http"])
def place(request: pytest.FixtureRequest, clock: SetClock) -> Iterator[Engine | str]:
    """An engine that is not open yet, or the URL of a server."""
    if request.param == "memory":
        yield Engine(MemoryStore(clock=clock), CONFIG)
    elif request.param == "postgres":
        from lockstep.storage.postgres.store import PostgresStore

        databases: Databases = request.getfixturevalue("databases")
        yield Engine(PostgresStore(databases.emptied(), clock=clock, config=CONFIG), CONFIG)
    else:
        from support.serving import serving

        with serving(MemoryStore(clock=clock), CONFIG) as url:
            yield url


@pytest.fixture
def server_url(clock: SetClock) -> Iterator[str]:
    """A server on a memory store."""
    from support.serving import serving

    with serving(MemoryStore(clock=clock), CONFIG) as url:
        yield url


@pytest.fixture
def flaky(server_url: str) -> Iterator[Flaky]:
    """A server in front of it, that fails as it is told."""
    with flaky_server(server_url) as made:
        yield made


@pytest.fixture
def nobody_url() -> str:
    """Where nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
