"""Pushes that a busy server queues, as a client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from lockstep import AsyncClient, Engine, connect_async, new_message
from lockstep.config import Config
from lockstep.engine.load import Decision
from lockstep.errors import InvalidRequest, OperationNotFound, Overloaded, QueueFull, StillQueued
from lockstep.storage.memory import MemoryStore
from support.flaky import Flaky

CONFIG = Config(operation_interval_seconds=0.05, operation_retries_max=0)


@pytest.fixture
def busy_engine() -> Engine:
    """One that queues every push, as if its load were high."""
    engine = Engine(MemoryStore(), CONFIG)
    engine._load.push = Decision.QUEUE
    return engine


@pytest.fixture
def busy_url(busy_engine: Engine) -> Iterator[str]:
    from support.serving import serving_engine

    with serving_engine(busy_engine, CONFIG) as url:
        yield url


@pytest_asyncio.fixture
async def busy(busy_url: str) -> AsyncIterator[AsyncClient]:
    async with connect_async(busy_url) as client:
        yield client


async def test_push_waits_until_it_is_applied(busy: AsyncClient) -> None:
    receipt = await busy.push("q", {"n": 1}, transaction_id="x", partition="p")
    assert (receipt.status, receipt.seq, receipt.transaction_id, receipt.partition) == ("queued", 1, "x", "p")
    assert receipt.operation_id is None
    again = await busy.push("q", {"n": 1}, transaction_id="x", partition="p")
    assert (again.status, again.message_id) == ("duplicate", receipt.message_id)
    popped = await busy.pop("q")
    assert [message.id for message in popped] == [receipt.message_id]


async def test_receipts_of_many_are_in_their_order(busy: AsyncClient) -> None:
    messages = [new_message("q", n, partition=p, transaction_id=f"t{n}") for n, p in enumerate("abab")]
    receipts = await busy.push_many(messages)
    assert [(r.index, r.partition, r.seq, r.transaction_id) for r in receipts] == [
        (0, "a", 1, "t0"),
        (1, "b", 1, "t1"),
        (2, "a", 2, "t2"),
        (3, "b", 2, "t3"),
    ]


async def test_push_may_return_with_the_id_of_the_operation(busy: AsyncClient) -> None:
    receipt = await busy.push("q", 1, transaction_id="x", queued="return")
    assert receipt.operation_id is not None
    assert (receipt.status, receipt.seq, receipt.message_id, receipt.transaction_id) == ("deferred", 0, "", "x")
    info = await busy.operation(receipt.operation_id, wait_seconds=30)
    assert info.status == "done"
    assert info.outcome is not None
    assert info.outcome.pushed()[0].seq == 1
    assert [one.id for one in (await busy.operations(status="done")).items] == [receipt.operation_id]
    assert (await busy.operation_stats()).applied == 1


async def test_client_may_be_told_to_return_always(busy_url: str) -> None:
    async with connect_async(busy_url, queued="return") as client:
        assert (await client.push("q", 1)).operation_id is not None
        assert (await client.push("q", 2, queued="wait")).seq == 2


async def test_engine_in_the_process_knows_both_ways(busy_engine: Engine) -> None:
    from lockstep.client._async.transport_engine import AsyncEngineTransport

    async with AsyncClient(AsyncEngineTransport(busy_engine)) as client:
        assert (await client.push("q", 1)).seq == 1
        assert (await client.push("q", 2, queued="return")).operation_id is not None


async def test_full_queue_is_told_from_a_busy_server(busy: AsyncClient, busy_engine: Engine) -> None:
    await busy.configure("q", max_size=1)
    await busy.push("q", 1)
    with pytest.raises(QueueFull) as full:
        await busy.push("q", 2)
    assert full.value.details["queue"] == "q"
    [failed] = (await busy.operations(status="failed")).items
    await busy.pop("q", auto_ack=True)
    await busy.retry_operation(failed.id)
    assert (await busy.operation(failed.id, wait_seconds=30)).status == "done"
    busy_engine._load.push = Decision.REJECT
    async with connect_async(_url(busy), retry_on_429=False) as client:
        with pytest.raises(Overloaded) as refused:
            await client.push("q", 3)
        assert not isinstance(refused.value, QueueFull)


def _url(client: AsyncClient) -> str:
    transport: Any = client._transport
    return str(transport._bases.choose(0))


async def test_push_that_is_not_applied_in_time_names_its_operation(busy_url: str, busy_engine: Engine) -> None:
    busy_engine._operations._processing._stopping = True  # nobody applies anything
    async with connect_async(busy_url, client_queued_seconds_max=0.01) as client:
        with pytest.raises(StillQueued) as late:
            await client.push("q", 1)
        info = await client.operation(late.value.details["operation_id"])
        assert (info.status, info.position) == ("pending", 1)


async def test_refused_push_comes_again_when_the_server_says(flaky: Flaky) -> None:
    async with connect_async(flaky.url, max_retry_delay=0.01) as client:
        flaky.requests.clear()
        flaky.plan = [429, 429]
        assert (await client.push("q", 1)).seq == 1
        assert flaky.requests == ["POST /api/v1/push"] * 3


async def test_bad_use_is_explained(busy: AsyncClient) -> None:
    with pytest.raises(InvalidRequest):
        await busy.push("q", 1, queued="later")  # type: ignore[arg-type]
    with pytest.raises(OperationNotFound):
        await busy.operation("0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b")
