"""A server keeps a history of its requests, errors and load."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lockstep import Engine
from lockstep.config import load
from lockstep.core.statistics import ServerSpan
from lockstep.errors import Unavailable
from lockstep.server.node import Node
from lockstep.storage.memory import MemoryStore
from support.http import Http


def node() -> Node:
    config = load({"samples_interval_seconds": 60}, environ={})
    return Node(Engine(MemoryStore(), config), config)


async def taken(of: Node) -> list[ServerSpan]:
    now = datetime.now(UTC)
    return await of.engine.server_spans(
        seconds=365 * 86_400, from_at=now - timedelta(hours=1), to_at=now + timedelta(hours=1)
    )


async def test_sample_has_what_happened_since_the_last_one() -> None:
    server = node()
    for status, count in ((200, 5), (404, 2), (429, 3), (503, 1)):
        server.counters.requests["POST", "/api/v1/push", status] += count
    server.engine.counts.load["push"].rejected += 3
    server.engine.counts.load["push"].load = 1.5
    await server.sampling.run_once()
    assert await taken(server) == [], "the interval is not over"
    server.engine.counts.load["push"].load = 0.5
    await server.sampling.take()
    [span] = await taken(server)
    assert (span.requests, span.client_errors, span.server_errors, span.rejected) == (11, 2, 1, 3)
    assert span.load == 1.5, "the highest that was seen"
    await server.sampling.take()
    [span] = await taken(server)
    assert span.requests == 11


async def test_sample_that_cannot_be_stored_is_part_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    server = node()
    server.counters.requests["GET", "/health", 200] += 4

    async def away(_sample: object) -> None:
        raise Unavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(server.engine, "record_server", away)
        with pytest.raises(Unavailable):
            await server.sampling.take()
    server.counters.requests["GET", "/health", 200] += 1
    await server.sampling.take()
    [span] = await taken(server)
    assert span.requests == 5


def test_route_has_the_history(http: Http) -> None:
    answer = http.get("/api/v1/analytics/requests", interval="minute", lastSeconds=600).json()
    assert answer["interval"] == "minute"
    assert isinstance(answer["dataPoints"], list)
    refused = http.get("/api/v1/analytics/requests", queue="q")
    assert (refused.status, refused.code) == (400, "unknown_name")
