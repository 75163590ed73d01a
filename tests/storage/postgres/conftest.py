"""A database of the worker's own, emptied for each test, and sessions side by side on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.databases import Databases
from support.sessions import Stage


@pytest.fixture
def dsn(databases: Databases) -> str:
    return databases.emptied()


@pytest_asyncio.fixture
async def stage(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[Stage]:
    """Sessions on the database's clock, or on the test's with the mark `set_clock`. They must leave it consistent."""
    clock = request.getfixturevalue("clock") if request.node.get_closest_marker("set_clock") else None
    async with Stage(dsn, clock=clock) as stage:
        yield stage
        assert await (await stage.actor()).store.verify() == []
