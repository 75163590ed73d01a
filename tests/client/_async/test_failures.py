"""Servers that fail, answers that are lost, and servers that step in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from lockstep import Ack, AsyncClient, Position, connect_async, new_message
from lockstep.errors import LeaseLost, QueueFull, TransactionRolledBack, Unavailable
from support.flaky import Flaky

from .support import ended, running

PUSH = "POST /api/v1/push"
QUICK: dict[str, Any] = {"max_retry_delay": 0.01}


@pytest_asyncio.fixture
async def quick(flaky: Flaky) -> AsyncIterator[AsyncClient]:
    """A client of the server that fails, which does not wait long before it tries again."""
    async with connect_async(flaky.url, **QUICK) as client:
        flaky.requests.clear()
        yield client


@pytest.mark.parametrize("failure", [503, 502, 429, "lost", "unanswered"])
async def test_push_is_repeated_and_stored_once(quick: AsyncClient, flaky: Flaky, failure: Any) -> None:
    flaky.plan = [failure, failure]
    receipt = await quick.push("orders", 1)
    assert receipt.seq == 1
    assert flaky.requests == [PUSH] * 3
    assert (await quick.queue("orders")).messages == 1


@pytest.mark.parametrize("failure", [502, "lost", "unanswered"])
async def test_push_that_may_be_stored_is_not_repeated_without_ids(flaky: Flaky, failure: Any) -> None:
    async with connect_async(flaky.url, exactly_once=False, **QUICK) as client:
        flaky.requests.clear()
        flaky.plan = [failure]
        with pytest.raises(Unavailable):
            await client.push("orders", 1)
        assert flaky.requests == [PUSH]
        flaky.plan = [503]
        await client.push("orders", 2)
        flaky.plan = ["unanswered"]
        await client.push("orders", 3, transaction_id="mine")
        stored = [view.message.payload for view in (await client.messages("orders")).items]
    assert stored == [*([b"1"] if failure == "unanswered" else []), b"2", b"3"]


async def test_attempts_are_limited(flaky: Flaky) -> None:
    async with connect_async(flaky.url, retry_attempts_max=2, **QUICK) as client:
        flaky.requests.clear()
        flaky.plan = [503, 503, 503]
        with pytest.raises(Unavailable, match="not now"):
            await client.push("orders", 1)
        assert flaky.requests == [PUSH] * 2


async def test_full_queue_is_not_asked_again(quick: AsyncClient, flaky: Flaky) -> None:
    await quick.configure("small", max_size=1)
    await quick.push("small", 1)
    flaky.requests.clear()
    with pytest.raises(QueueFull):
        await quick.push("small", 2)
    assert flaky.requests == [PUSH]


async def test_lost_answer_of_an_ack_is_told(quick: AsyncClient, flaky: Flaky) -> None:
    await quick.push("orders", 1)
    delivery = await quick.pop("orders")
    flaky.plan = ["unanswered"]
    with pytest.raises(LeaseLost, match="may have been applied") as caught:
        await delivery.ack()
    assert caught.value.details["maybe_applied"] is True
    assert [lag.acked for lag in await quick.lag("orders")] == [1]


async def test_lost_answer_of_a_transaction_is_told(quick: AsyncClient, flaky: Flaky) -> None:
    await quick.push("orders", 1)
    transaction = quick.transaction()
    transaction.ack(await quick.pop("orders"))
    transaction.push("bills", 1)
    flaky.plan = ["unanswered"]
    with pytest.raises(TransactionRolledBack, match="may have been applied"):
        await transaction.commit()
    assert (await quick.queue("bills")).messages == 1


async def test_pop_that_acknowledges_at_once_is_not_repeated(quick: AsyncClient, flaky: Flaky) -> None:
    """What the first one took out of the queue would be gone, and nobody told."""
    await quick.push_many([new_message("orders", number) for number in (1, 2)])
    flaky.plan = ["unanswered"]
    with pytest.raises(Unavailable) as caught:
        await quick.pop("orders", auto_ack=True)
    assert caught.value.details["maybe_applied"] is True
    assert (await quick.pop("orders", auto_ack=True)).payloads() == [2]


async def test_acks_that_are_applied_together_are_not_repeated(quick: AsyncClient, flaky: Flaky) -> None:
    await quick.push("orders", 1)
    delivery = await quick.pop("orders")
    flaky.plan = ["unanswered"]
    with pytest.raises(Unavailable) as caught:
        await quick.ack([Ack(lease_id=delivery.lease_id)], atomic=True)
    assert caught.value.details["maybe_applied"] is True


async def test_verb_that_must_not_be_applied_twice_is_not_repeated(quick: AsyncClient, flaky: Flaky) -> None:
    await quick.push("orders", 1)
    await quick.subscribe("orders", "g")
    flaky.plan = ["unanswered"]
    assert await quick.seek("orders", "g", Position("end")) == 1
    flaky.plan = ["unanswered"]
    with pytest.raises(Unavailable) as caught:
        await quick.clear("orders")
    assert caught.value.details["maybe_applied"] is True
    assert (await quick.queue("orders")).messages == 0


async def test_server_that_is_not_there(nobody_url: str) -> None:
    client = connect_async(nobody_url, **QUICK)
    with pytest.raises(Unavailable, match="cannot be reached") as caught:
        await client.push("orders", 1)
    assert caught.value.details["maybe_applied"] is False
    with pytest.raises(Unavailable):
        await client.open()
    await client.close()
    with pytest.raises(Unavailable, match="closed"):
        await client.push("orders", 1)


async def test_attempt_before_the_last_may_have_been_applied(flaky: Flaky, nobody_url: str) -> None:
    async with connect_async([flaky.url, nobody_url], retry_attempts_max=2, **QUICK) as client:
        flaky.plan = ["unanswered"]
        with pytest.raises(Unavailable, match="cannot be reached") as caught:
            await client.push("orders", 1)
        assert caught.value.details["maybe_applied"] is True


async def test_answer_of_a_proxy_does_not_say_what_was_done(quick: AsyncClient, flaky: Flaky) -> None:
    flaky.plan = [502]
    with pytest.raises(Unavailable) as caught:
        await quick.clear("orders")
    assert caught.value.details["maybe_applied"] is True


async def test_next_server_steps_in_and_stays(flaky: Flaky, nobody_url: str, server_url: str) -> None:
    async with connect_async([nobody_url, flaky.url, server_url], retry_attempts_max=1) as client:
        flaky.requests.clear()
        for i in range(3):
            await client.push("orders", i)
        assert len(flaky.requests) == 3
        flaky.plan = [503]
        await client.push("orders", 3)
        await client.push("orders", 4)
        assert len(flaky.requests) == 4
        assert (await client.queue("orders")).messages == 5


async def test_servers_may_be_named_in_one_address(flaky: Flaky, nobody_url: str) -> None:
    async with connect_async(f"{nobody_url}, {flaky.url}/") as client:
        assert (await client.push("orders", 1)).seq == 1


async def test_worker_outlives_a_server_that_is_away(flaky: Flaky) -> None:
    async with connect_async(flaky.url, retry_attempts_max=1) as client:
        await client.push_many([new_message("orders", i) for i in range(2)])
        flaky.plan = [503, "lost"]
        seen: list[int] = []

        @client.worker("orders", batch=1)
        async def handle(message: Any) -> None:
            seen.append(message.payload)
            if len(seen) == 2:
                client.stop()

        await ended(running(client))
        assert seen == [0, 1]


async def test_large_bodies(quick: AsyncClient) -> None:
    payload = "x" * 3_000_000
    await quick.push("orders", payload)
    assert (await quick.pop("orders")).payloads() == [payload]


async def test_token_is_sent(flaky: Flaky) -> None:
    async with connect_async(flaky.url, token="secret") as client:
        await client.push("orders", 1)
    assert flaky.tokens[-1] == "Bearer secret"
