"""Polls that wait: woken by pushes here and elsewhere, and gone with their client.

The checks of the servers are hours apart, so only a wake-up can end a wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from support.broker import Broker, data
from support.locks import POPS, held_up
from support.server import ServerProcess, running_server

NEVER = {"pop_check_seconds_min": 3600, "pop_check_seconds_max": 3600}


@pytest.fixture(scope="module", params=[True, False], ids=["batching", "no_batching"])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, module_dsn: str
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Two on one database."""
    settings = {**NEVER, "batching": request.param}
    with (
        running_server(module_dsn, tmp_path_factory.mktemp("here"), **settings) as here,
        running_server(module_dsn, tmp_path_factory.mktemp("there"), **settings) as there,
    ):
        yield here, there


@pytest_asyncio.fixture
async def here(servers: tuple[ServerProcess, ServerProcess]) -> AsyncIterator[Broker]:
    async with Broker(servers[0].url) as broker:
        yield broker


@pytest_asyncio.fixture
async def there(servers: tuple[ServerProcess, ServerProcess]) -> AsyncIterator[Broker]:
    async with Broker(servers[1].url) as broker:
        yield broker


async def test_push_wakes_a_poll_on_the_same_server(here: Broker, queue: str) -> None:
    poll = here.poll(queue)
    await here.wait_for_polls(1)
    await here.push_to(queue, "hello")
    assert data(await poll) == ["hello"]


async def test_push_wakes_a_poll_on_another_server(here: Broker, there: Broker, queue: str) -> None:
    for number in range(3):
        poll = here.poll(queue, consumerGroup="g")
        await here.wait_for_polls(1)
        await there.push_to(queue, number)
        popped = await poll
        assert popped is not None
        assert data(popped) == [number]
        await here.ack(popped["messages"])


async def test_push_wakes_polls_on_both_servers(here: Broker, there: Broker, queue: str) -> None:
    polls = [broker.poll(queue) for broker in (here, there) for _ in range(3)]
    await asyncio.gather(here.wait_for_polls(3), there.wait_for_polls(3))
    await here.push([{"queue": queue, "partition": f"p{number}", "payload": number} for number in range(6)])
    assert sorted([data(popped)[0] for popped in await asyncio.gather(*polls)]) == list(range(6))


async def test_transaction_and_ack_wake_polls(here: Broker, queue: str) -> None:
    await here.push_to(queue, 1, 2)
    first = await here.pop(queue)
    assert first is not None
    poll = here.poll(queue)
    await here.wait_for_polls(1)
    await here.ack(first["messages"])
    second = await poll
    assert second is not None
    assert data(second) == [2]

    poll = here.poll(f"{queue}-out")
    await here.wait_for_polls(1)
    operations = [{"type": "push", "items": [{"queue": f"{queue}-out", "payload": "moved"}]}]
    assert (await here.send("POST", "/api/v1/transaction", body={"operations": operations}))[1]["success"]
    assert data(await poll) == ["moved"]


async def test_poll_of_a_client_that_went_is_freed(here: Broker, queue: str) -> None:
    polls = [here.poll(queue) for _ in range(20)]
    await here.wait_for_polls(20)
    for poll in polls:
        poll.cancel()
    await here.wait_for_polls(0)
    await here.push_to(queue, 1)
    # A look that was under way for one of them may take the message for a moment.
    popped = await here.poll(queue)
    assert popped is not None
    assert popped["messages"][0]["attempt"] == 1


async def test_poll_is_freed_with_its_client_whatever_that_sent_behind_it(here: Broker, queue: str) -> None:
    _, _, port = here.url.rpartition(":")
    _, writer = await asyncio.open_connection("localhost", int(port))
    poll = f"GET /api/v1/pop/queue/{queue}?wait=true&timeout=300000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    writer.write(f"{poll}GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await here.wait_for_polls(1)
    writer.close()
    await writer.wait_closed()
    await here.wait_for_polls(0)


async def test_what_was_leased_for_a_client_that_went_is_released(module_dsn: str, here: Broker, queue: str) -> None:
    """The pop is under way when its client goes, and leases a message for nobody."""
    await here.configure(queue)
    assert await here.pop(queue) is None  # The first pop makes the group, and would wait there.
    await here.push_to(queue, 1)
    async with held_up(module_dsn, POPS) as pops:
        poll = here.poll(queue)
        await pops.wait_for_waiter()
        poll.cancel()
        await here.wait_for_polls(0)
        other = here.poll(queue)
        await here.wait_for_polls(1)
        pops.release()
        popped = await other
    assert popped is not None
    assert data(popped) == [1]
    assert popped["messages"][0]["attempt"] == 1
