"""Real servers, one for each store, that all tests of a worker share: each test has queues of its own."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from support.databases import Databases
from support.http import Http
from support.server import ServerProcess, running_server

STORES = ("memory", "postgres")

# Nobody should wait for long, and what is too large should be so without much sending.
SETTINGS = {
    "pop_wait_seconds_max": 0.5,
    "body_bytes_max": 2_000_000,
    "request_timeout_seconds": 5,
    "shutdown_timeout_seconds": 5,
}


@pytest.fixture(scope="session")
def memory_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server("memory://", tmp_path_factory.mktemp("memory-server"), **SETTINGS) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[ServerProcess]:
    dsn = databases.clone()
    with running_server(dsn, tmp_path_factory.mktemp("postgres-server"), **SETTINGS) as server:
        yield server
    databases.drop(dsn)


@pytest.fixture(params=STORES)
def http(request: pytest.FixtureRequest) -> Http:
    """A server on each store in turn."""
    server: ServerProcess = request.getfixturevalue(f"{request.param}_server")
    return Http(server.url)


@pytest.fixture
def memory_http(memory_server: ServerProcess) -> Http:
    """For what does not depend on the store."""
    return Http(memory_server.url)


@pytest.fixture
def queue() -> str:
    return f"queue-{uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    return f"group-{uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def impatient_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    """A server that gives slow clients up soon."""
    directory = tmp_path_factory.mktemp("impatient-server")
    with running_server("memory://", directory, request_timeout_seconds=0.2) as server:
        yield Http(server.url)
