"""Two servers on one database: what is changed through one rules the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import datetime, timedelta

import pytest
import pytest_asyncio

from support.broker import TIMEOUT_SECONDS, Broker, Json, data
from support.server import ServerProcess, running_server


@pytest.fixture(scope="module")
def other_server(tmp_path_factory: pytest.TempPathFactory, module_dsn: str) -> Iterator[ServerProcess]:
    with running_server(module_dsn, tmp_path_factory.mktemp("other")) as server:
        yield server


@pytest_asyncio.fixture
async def other(other_server: ServerProcess) -> AsyncIterator[Broker]:
    async with Broker(other_server.url) as broker:
        yield broker


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Returns when something that is asked for again and again holds."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await holds():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.005)


async def test_size_limit_set_on_one_rules_pushes_on_the_other(broker: Broker, other: Broker, queue: str) -> None:
    await other.push_to(queue, 0)
    await broker.configure(queue, maxSize=1)

    async def refused() -> bool:
        body = {"items": [{"queue": queue, "payload": 1}]}
        status, answer = await other.send("POST", "/api/v1/push", body=body)
        assert status in (201, 429)
        return status == 429 and answer["code"] == "QUEUE_FULL"

    await until(refused)


async def test_lease_time_set_on_one_rules_pops_on_the_other(broker: Broker, other: Broker, queue: str) -> None:
    await other.configure(queue, leaseTime=10)
    await other.push_to(queue, 0)
    assert lease_seconds(await other.pop(queue, leaseSeconds=1)) <= 1
    await broker.configure(queue, leaseTime=10_000)

    async def is_long() -> bool:
        popped = await other.pop(queue)
        if popped is None:  # the short lease is not over
            return False
        await other.ack(popped["messages"], "retry")
        return lease_seconds(popped) > 1000

    await until(is_long)


def lease_seconds(popped: Json | None) -> float:
    """How long the lease lasts, as seen by one who takes its deadline and the time of the answer."""
    assert popped is not None
    expires_at = datetime.fromisoformat(popped["expiresAt"])
    return (expires_at - datetime.now(expires_at.tzinfo)) / timedelta(seconds=1)


async def test_queue_deleted_on_one_is_made_anew_by_the_other(broker: Broker, other: Broker, queue: str) -> None:
    for _ in range(5):
        await other.push_to(queue, "old")
        assert data(await other.pop(queue, consumerGroup="g")) == ["old"]
        status, answer = await broker.send("DELETE", f"/api/v1/resources/queues/{queue}")
        assert (status, answer["existed"]) == (200, True)
        await other.push_to(queue, "new")
        assert data(await other.pop(queue, consumerGroup="g", batch=10)) == ["new"]
        await broker.send("DELETE", f"/api/v1/resources/queues/{queue}")


async def test_group_moved_on_one_reads_anew_on_the_other(broker: Broker, other: Broker, queue: str) -> None:
    await broker.push_to(queue, 1, 2)
    popped = await other.pop(queue, consumerGroup="g", batch=2)
    assert popped is not None
    await other.ack(popped["messages"])
    path = f"/api/v1/consumer-groups/g/queues/{queue}/seek"
    status, _ = await broker.send("POST", path, body={"timestamp": "2020-01-01T00:00:00Z"})
    assert status == 200
    assert data(await other.pop(queue, consumerGroup="g", batch=2)) == [1, 2]


async def test_lease_of_one_is_renewed_and_ended_on_the_other(broker: Broker, other: Broker, queue: str) -> None:
    await broker.push_to(queue, 1)
    popped = await broker.pop(queue)
    assert popped is not None
    _, renewed = await other.send("POST", f"/api/v1/lease/{popped['leaseId']}/extend", body={"seconds": 900})
    assert (renewed["success"], renewed["renewed"]) == (True, 1)
    assert [result["success"] for result in await other.ack(popped["messages"])] == [True]
    assert await broker.pop(queue) is None


async def test_no_partition_is_given_out_by_both(broker: Broker, other: Broker, queue: str) -> None:
    names = [f"p{number}" for number in range(40)]
    await broker.push([{"queue": queue, "partition": name, "payload": name} for name in names])
    popped = await asyncio.gather(*[one.pop(queue) for _ in range(30) for one in (broker, other)])
    assert sorted([name for one in popped for name in data(one)]) == sorted(names)
