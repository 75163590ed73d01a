"""The command line on a server, and directly on a store."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from command_lines import CommandLine

from support.databases import Databases
from support.server import running_server


@pytest.fixture(scope="session")
def shared_dsn(databases: Databases) -> Iterator[str]:
    """One database for all tests here: each has a queue of its own in it."""
    dsn = databases.clone()
    yield dsn
    databases.drop(dsn)


@pytest.fixture(scope="session")
def shared_url(shared_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server on it."""
    with running_server(shared_dsn, tmp_path_factory.mktemp("server")) as server:
        yield server.url


@pytest.fixture(params=["server", "store"])
def lockstep(request: pytest.FixtureRequest) -> CommandLine:
    """The command line on a server, and directly on a store."""
    if request.param == "server":
        return CommandLine(("--url", request.getfixturevalue("shared_url")))
    return CommandLine(("--dsn", request.getfixturevalue("shared_dsn")))


@pytest.fixture
def direct(shared_dsn: str) -> CommandLine:
    """Directly on a store."""
    return CommandLine(("--dsn", shared_dsn))


@pytest.fixture
def queue() -> str:
    """A name that no other test uses."""
    return f"q-{uuid4().hex}"
