"""Deliveries that are continued: by hand, and by consumers and workers."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep import AsyncClient, Engine, new_message
from lockstep.client._async.concurrency import Task
from lockstep.client._async.delivery import AsyncDelivery
from lockstep.errors import InvalidRequest, LeaseLost
from support.clock import SetClock

from .support import ended, running, until


async def push_numbers(client: AsyncClient, count: int, partition: str = "Default") -> None:
    await client.push_many([new_message("orders", i, partition=partition) for i in range(count)])


async def acked(client: AsyncClient) -> int:
    return sum(lag.acked for lag in await client.lag("orders"))


async def test_next_completes_and_goes_on(client: AsyncClient) -> None:
    await push_numbers(client, 5)
    delivery = await client.pop("orders", batch=2)
    following = await delivery.next()
    assert (delivery.payloads(), following.payloads()) == ([0, 1], [2, 3])
    assert following.lease_id != delivery.lease_id
    assert await acked(client) == 2
    assert [message.payload for message in await following.next()] == [4]


async def test_loop_of_next_sees_all(client: AsyncClient) -> None:
    await push_numbers(client, 7)
    seen = []
    delivery = await client.pop("orders", batch=3)
    while delivery:
        seen += delivery.payloads()
        delivery = await delivery.next()
    assert seen == list(range(7))
    assert await client.leases() == []


async def test_next_asks_as_the_pop_did(client: AsyncClient) -> None:
    await push_numbers(client, 2, partition="a")
    await push_numbers(client, 2, partition="b")
    delivery = await client.pop("orders", partition="b", group="g", lease_seconds=7, as_type=int)
    following = await delivery.next()
    assert [(message.partition, message.payload) for message in following] == [("b", 1)]
    assert (following.group, not await following.next()) == ("g", True)


async def test_next_waits_for_messages(client: AsyncClient) -> None:
    await push_numbers(client, 1)
    delivery = await client.pop("orders")
    found: list[AsyncDelivery] = []

    async def go_on() -> None:
        found.append(await delivery.next(wait=True))

    going = Task(go_on, name="test-next")
    await until(lambda: _is_acked(client, 1))
    await push_numbers(client, 1)
    await ended(going)
    assert found[0].payloads() == [0]


async def _is_acked(client: AsyncClient, count: int) -> bool:
    return await acked(client) == count


async def test_wait_for_nothing_ends_empty(client: AsyncClient) -> None:
    await push_numbers(client, 1)
    delivery = await client.pop("orders")
    assert not await delivery.next(wait=True, timeout_seconds=0.01)
    assert await acked(client) == 1


async def test_lost_lease_leases_nothing(client: AsyncClient, clock: SetClock) -> None:
    await push_numbers(client, 3)
    delivery = await client.pop("orders", lease_seconds=10)
    clock.advance(10)
    for _ in range(2):
        with pytest.raises(LeaseLost):
            await delivery.next()
    assert delivery.lost
    assert await client.leases() == []
    assert [message.attempt for message in await client.pop("orders")] == [2]


async def test_delivery_is_continued_once(client: AsyncClient) -> None:
    await push_numbers(client, 3)
    delivery = await client.pop("orders")
    await delivery.next()
    again = await delivery.next()
    assert not again, "all of it is acknowledged, and the rest is leased"
    assert await acked(client) == 1


async def test_failed_message_is_no_obstacle(client: AsyncClient, clock: SetClock) -> None:
    """What is left is acknowledged, and then popped."""
    await push_numbers(client, 2, partition="a")
    await push_numbers(client, 2, partition="b")
    delivery = await client.pop("orders", batch=4, partitions=2)
    await delivery[0].nack("no")
    assert not await delivery.next()
    assert await acked(client) == 2
    clock.advance(3600)
    again = await client.pop("orders", batch=4)
    assert [(message.partition, message.payload) for message in again] == [("a", 0), ("a", 1)]
    assert again[0].attempt == 2


async def test_acknowledged_delivery_pops(client: AsyncClient) -> None:
    await push_numbers(client, 3)
    delivery = await client.pop("orders")
    await delivery.ack()
    assert [message.payload for message in await delivery.next()] == [1]


async def test_auto_acknowledged_delivery_pops(client: AsyncClient) -> None:
    await push_numbers(client, 3)
    delivery = await client.pop("orders", auto_ack=True)
    assert [message.payload for message in await delivery.next()] == [1]


async def test_empty_delivery_pops(client: AsyncClient) -> None:
    delivery = await client.pop("orders")
    await push_numbers(client, 1)
    assert [message.payload for message in await delivery.next()] == [0]


async def test_shared_group(client: AsyncClient) -> None:
    await push_numbers(client, 5)
    delivery = await client.pop("orders", group="workers", mode="shared", batch=2)
    following = await delivery.next()
    assert following.payloads() == [2, 3]
    await following[0].release()
    assert (await following.next()).payloads() == [2, 4]


async def test_lease_is_continued_by_its_id(client: AsyncClient) -> None:
    await push_numbers(client, 3)
    delivery = await client.pop("orders", group="g")
    following = await client.next(delivery.lease_id or "", "orders", group="g", batch=5)
    assert following.payloads() == [1, 2]
    with pytest.raises(LeaseLost):
        await client.next(delivery.lease_id or "", "orders", group="g", wait=True)


async def test_patience_goes_with_a_wait(client: AsyncClient) -> None:
    await push_numbers(client, 1)
    delivery = await client.pop("orders")
    with pytest.raises(InvalidRequest):
        await delivery.next(timeout_seconds=1)
    with pytest.raises(InvalidRequest):
        await delivery.next(wait=True, timeout_seconds=-1)
    await delivery.ack()


# --- Consumers and workers


def calls(engine: Engine, verb: str) -> int:
    return engine.counts.calls[verb].requests


async def test_consumer_continues_its_leases(memory_engine: Engine, memory_client: AsyncClient) -> None:
    await push_numbers(memory_client, 25)
    consumer = memory_client.consume("orders", batch=5, idle_timeout_seconds=0.05)
    assert [message.payload async for message in consumer] == list(range(25))
    assert await acked(memory_client) == 25
    assert calls(memory_engine, "next") >= 5
    assert calls(memory_engine, "ack_leases") + calls(memory_engine, "ack") == 0


async def test_consumer_that_is_stopped_while_it_waits_has_acknowledged(client: AsyncClient) -> None:
    await push_numbers(client, 2)
    consumer = client.consume("orders")
    seen: dict[int, Any] = {}

    async def consume() -> None:
        async for message in consumer:
            seen[message.seq] = message.payload

    consuming = Task(consume, name="test-consumer")
    await until(lambda: _is_acked(client, 2))
    await consumer.close()
    await ended(consuming)
    assert seen == {1: 0, 2: 1}
    assert await client.leases() == []


@pytest.mark.parametrize("whole", [False, True])
async def test_worker_continues_its_leases(memory_engine: Engine, memory_client: AsyncClient, whole: bool) -> None:
    await push_numbers(memory_client, 20)
    seen: list[int] = []

    @memory_client.worker("orders", batch=5, whole=whole)
    async def handle(given: Any) -> None:
        seen.extend(given.payloads() if whole else [given.payload])

    run = running(memory_client)
    await until(lambda: _is_acked(memory_client, 20))
    memory_client.stop()
    await ended(run)
    assert seen == list(range(20))
    assert calls(memory_engine, "next") >= 4
    assert calls(memory_engine, "pop") <= 2
    assert await memory_client.leases() == []


async def test_consumer_whose_message_fails_goes_on(client: AsyncClient, clock: SetClock) -> None:
    await push_numbers(client, 3, partition="a")
    await push_numbers(client, 3, partition="b")
    seen: list[tuple[str, int]] = []

    @client.worker("orders", batch=6, partitions=2)
    async def handle(message: Any) -> None:
        if (message.partition, message.payload, message.attempt) == ("a", 1, 1):
            raise ZeroDivisionError
        seen.append((message.partition, message.payload))

    run = running(client)
    await until(lambda: _is_acked(client, 4))
    clock.advance(3600)
    await until(lambda: _is_acked(client, 6))
    client.stop()
    await ended(run)
    assert [payload for partition, payload in seen if partition == "a"] == [0, 1, 2]
    assert [payload for partition, payload in seen if partition == "b"] == [0, 1, 2]
