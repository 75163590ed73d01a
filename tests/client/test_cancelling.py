"""Calls that are cancelled: at whatever moment that happens, nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from lockstep import AsyncClient, Engine, connect, connect_async, handover, new_message
from lockstep.client._async.transport_engine import AsyncEngineTransport

T = TypeVar("T")

MOMENTS = range(40)
"""Turns of the event loop after which a call is cancelled: more than the longest one takes in memory."""


@pytest_asyncio.fixture
async def client(place: Engine | str) -> AsyncIterator[AsyncClient]:
    made = connect_async(place) if isinstance(place, str) else AsyncClient(AsyncEngineTransport(place))
    async with made as client:
        yield client


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is on its way is waited for, however slow the machine is."""
    monkeypatch.setattr(handover, "_LATE_SECONDS", 30.0)


async def nothing_is_leased(client: AsyncClient) -> None:
    async with asyncio.timeout(30):
        while await client.leases():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


async def cancelled_after(turns: int, work: Coroutine[Any, Any, T]) -> T | None:
    """What the work gave, if it was fast enough."""
    working = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    return await cancelled(working)


async def cancelled(working: asyncio.Task[T]) -> T | None:
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await working
    return None


@pytest.mark.parametrize("wait", [False, True])
async def test_cancelled_pop_keeps_no_lease(client: AsyncClient, wait: bool) -> None:
    await client.push_many([new_message("orders", 1, partition=f"p{moment}") for moment in MOMENTS])
    for moment in MOMENTS:
        delivery = await cancelled_after(moment, client.pop("orders", wait=wait))
        if delivery is not None:
            await delivery.release()
    await nothing_is_leased(client)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("wait", [False, True])
async def test_answer_that_comes_after_a_pop_was_cancelled_is_given_back(server_url: str, wait: bool) -> None:
    with connect(server_url) as other:
        async with connect_async(server_url) as client:
            await client.push("orders", 1)
            popping = asyncio.create_task(client.pop("orders", wait=wait))
            # To look blocks the event loop: when it sees a lease, the answer is there, and nobody has read it.
            while not other.leases():  # noqa: ASYNC110
                await asyncio.sleep(0)
            delivery = await cancelled(popping)
            if delivery is not None:
                await delivery.release()
        assert not other.leases()
        assert other.pop("orders")[0].attempt == 1


@pytest.mark.usefixtures("patient")
async def test_worker_that_stops_gives_back_what_was_on_its_way(server_url: str) -> None:
    with connect(server_url) as other:
        async with connect_async(server_url) as client:
            handled: list[object] = []

            @client.worker("orders")
            async def handle(message: object) -> None:
                handled.append(message)

            running = asyncio.create_task(client.run(stop_on_signals=False))
            await asyncio.sleep(0)
            client.stop()
            other.push("orders", 1)
            await running
        assert not other.leases()
        assert len(handled) + len(other.pop("orders")) == 1


async def test_cancelled_push_is_there_or_not(client: AsyncClient) -> None:
    for moment in MOMENTS:
        await cancelled_after(moment, client.push_many([new_message("orders", moment) for _ in range(3)]))
    await client.push("orders", "last")  # behind them all
    stored = [view.message.payload for view in (await client.messages("orders", limit=1000)).items]
    assert all(stored.count(b"%d" % moment) in (0, 3) for moment in MOMENTS)
    assert await client.verify() == []
