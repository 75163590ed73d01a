"""Clients that go before they have their answer: whoever waits for them stops, and what was leased is released."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from lockstep.config import Config
from lockstep.core.messages import Batch
from lockstep.core.records import PopRequest
from lockstep.engine.engine import Engine
from lockstep.server.app import Application
from lockstep.server.exchange import Request, Response
from lockstep.server.node import Node
from lockstep.storage.memory import MemoryStore
from support.until import until


@pytest_asyncio.fixture
async def node() -> AsyncIterator[Node]:
    async with Engine(MemoryStore(), Config()) as engine:
        yield Node(engine, Config())


def _arrived(node: Node) -> tuple[Request, asyncio.Task[Response | None]]:
    """A waiting pop, from a client that may leave."""
    application = Application(node)
    request = application.request("GET", b"/api/v1/pop/queue/q", b"wait=true&timeout=30000", {b"host": b"localhost"})
    assert application.refuse(request) is None
    return request, asyncio.create_task(application.respond(request))


async def test_waiting_pop_ends_when_its_client_goes(node: Node) -> None:
    request, answering = _arrived(node)
    await until(lambda: node.engine.counts.waiting.polls == 1)
    request.leave()
    assert await answering is None
    assert (node.engine.counts.waiting.polls, node.counters.polls_abandoned) == (0, 1)
    assert answering.cancelling() == 0


async def test_pop_whose_client_went_before_it_began_does_not_wait(node: Node) -> None:
    request, answering = _arrived(node)
    request.leave()
    assert await answering is None
    assert node.counters.polls_abandoned == 1


async def test_server_that_stops_cancels_a_pop_whose_client_is_there(node: Node) -> None:
    _, answering = _arrived(node)
    await until(lambda: node.engine.counts.waiting.polls == 1)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert node.counters.polls_abandoned == 0


async def test_messages_that_come_as_the_client_goes_are_released(node: Node) -> None:
    request, answering = _arrived(node)
    await until(lambda: node.engine.counts.waiting.polls == 1)
    await node.engine.push([Batch.of("q", [b"1"])])
    request.leave()
    assert await answering is None
    await node.engine.stop_waiting()
    await node.engine._batching.close()
    assert await node.engine.leases() == []


async def test_next_whose_client_goes_has_completed_its_lease_and_leased_nothing(node: Node) -> None:
    await node.engine.push([Batch.of("q", [b"1"])])
    [popped] = await node.engine.pop([PopRequest(queue="q")])
    application = Application(node)
    path = f"/api/v1/lease/{popped.lease_id}/next"
    request = application.request("POST", path.encode(), b"", {b"host": b"localhost"})
    request.body = b'{"queue":"q","wait":true}'
    assert application.refuse(request) is None
    answering = asyncio.create_task(application.respond(request))
    await until(lambda: node.engine.counts.waiting.polls == 1)
    await until(lambda: node.engine.counts.calls["next"].requests == 1)
    await node.engine.push([Batch.of("q", [b"2"])])
    request.leave()
    assert await answering is None
    await node.engine.stop_waiting()
    await node.engine._batching.close()
    assert await node.engine.leases() == []
    assert [lag.acked for lag in await node.engine.lag("q")] == [1]


async def test_answer_that_cannot_be_sent_releases_its_lease(node: Node) -> None:
    await node.engine.push([Batch.of("q", [b"1"])])
    _, answering = _arrived(node)
    response = await answering
    assert response is not None
    assert response.undelivered is not None
    assert len(await node.engine.leases()) == 1
    response.undelivered()
    await node.engine._batching.close()
    assert await node.engine.leases() == []
