"""After every contract test the store's own consistency check must find nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from lockstep.storage.base import Store


@pytest_asyncio.fixture(autouse=True)
async def consistent(store: Store) -> AsyncIterator[None]:
    yield
    assert await store.verify() == []
