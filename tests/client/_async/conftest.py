"""Clients for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from lockstep import AsyncClient, Engine, connect_async
from lockstep.client._async.transport_engine import AsyncEngineTransport


@pytest_asyncio.fixture
async def client(place: Engine | str) -> AsyncIterator[AsyncClient]:
    """On each kind of place in turn."""
    made = connect_async(place) if isinstance(place, str) else AsyncClient(AsyncEngineTransport(place))
    async with made as client:
        yield client


@pytest_asyncio.fixture
async def memory_client(memory_engine: Engine) -> AsyncIterator[AsyncClient]:
    """For what no transport has a part in."""
    async with AsyncClient(AsyncEngineTransport(memory_engine)) as client:
        yield client
