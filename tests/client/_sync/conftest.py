"""Clients for threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockstep import Client, Engine, connect
from lockstep.client._sync.transport_engine import EngineTransport


@pytest.fixture
def client(place: Engine | str) -> Iterator[Client]:
    """On each kind of place in turn."""
    made = connect(place) if isinstance(place, str) else Client(EngineTransport(place))
    with made as client:
        yield client


@pytest.fixture
def memory_client(memory_engine: Engine) -> Iterator[Client]:
    """For what no transport has a part in."""
    with Client(EngineTransport(memory_engine)) as client:
        yield client
