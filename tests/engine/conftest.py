"""An engine over the memory store, and one over a store that must not be reached."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from lockstep.config import Config
from lockstep.engine.engine import Engine
from lockstep.storage.memory import MemoryStore
from support.clock import SetClock

CONFIG = Config(
    payload_bytes_max=100,
    push_messages_max=20,
    push_bytes_max=300,
    pop_messages_max=20,
    pop_partitions_max=5,
    ack_items_max=20,
    page_items_max=1000,
    error_text_length_max=10,
    headers_bytes_max=40,
    reference_length_max=8,
    kind_length_max=6,
    encoding_length_max=4,
)


class Unreachable:
    """A store that fails the test when the engine calls any verb of it."""

    def __getattr__(self, verb: str) -> Any:
        def reached(*_: Any, **__: Any) -> Any:
            raise AssertionError(f"the engine let bad input through to {verb}")

        return reached


@pytest_asyncio.fixture
async def engine(clock: SetClock) -> AsyncIterator[Engine]:
    """With small limits."""
    async with Engine(MemoryStore(clock=clock), CONFIG) as engine:
        yield engine


@pytest.fixture
def guarded() -> Engine:
    """With small limits, and a store that must not be reached."""
    return Engine(Unreachable(), CONFIG)
