"""Servers on PostgreSQL, in processes of their own. Tests of a module share them: each has queues of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest
import pytest_asyncio

from support.broker import Broker
from support.databases import Databases
from support.server import ServerProcess, running_server

MODES: dict[str, dict[str, object]] = {
    "as_is": {},
    "no_batching": {"batching": False},
    "no_precheck": {"pop_precheck": False},
}
"""What can be switched off. What a client sees must be the same."""


@pytest.fixture(scope="module")
def module_dsn(databases: Databases) -> Iterator[str]:
    """A migrated database of the module's own."""
    dsn = databases.clone()
    yield dsn
    databases.drop(dsn)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, module_dsn: str) -> Iterator[ServerProcess]:
    with running_server(module_dsn, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module", params=MODES)
def any_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, module_dsn: str
) -> Iterator[ServerProcess]:
    """A server in each mode in turn."""
    with running_server(module_dsn, tmp_path_factory.mktemp("server"), **MODES[request.param]) as server:
        yield server


@pytest_asyncio.fixture
async def broker(server: ServerProcess) -> AsyncIterator[Broker]:
    async with Broker(server.url) as broker:
        yield broker


@pytest_asyncio.fixture
async def any_broker(any_server: ServerProcess) -> AsyncIterator[Broker]:
    async with Broker(any_server.url) as broker:
        yield broker


@pytest.fixture
def queue() -> str:
    return f"queue-{uuid4().hex[:12]}"
