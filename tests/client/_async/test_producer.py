"""Pushing in the background."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from lockstep import AsyncClient, Config, Engine
from lockstep.client._async.concurrency import Task, sleep
from lockstep.client._async.transport_engine import AsyncEngineTransport
from lockstep.errors import InvalidName, InvalidPayload, InvalidRequest, QueueFull, TooLarge
from lockstep.storage.memory import MemoryStore

from .support import AsyncGate, ended, until


async def test_producer_keeps_the_order(client: AsyncClient) -> None:
    async with client.producer("orders", batch_messages_max=7) as producer:
        for i in range(50):
            await producer.push(i, partition=f"p{i % 2}", headers={"i": str(i)})
    for number in range(2):
        messages = await client.pop("orders", partition=f"p{number}", batch=100)
        assert messages.payloads() == list(range(number, 50, 2))
        assert messages[0].headers == {"i": str(number)}


async def test_flush_waits_until_all_is_stored(client: AsyncClient) -> None:
    producer = client.producer("orders")
    for i in range(3):
        await producer.push(i)
    await producer.flush()
    assert (await client.queue("orders")).messages == 3
    await producer.close()
    await producer.close()


async def test_messages_gather_while_a_push_is_under_way(memory_client: AsyncClient) -> None:
    gate = AsyncGate(memory_client._transport)
    async with AsyncClient(gate).producer("orders", batch_messages_max=3) as producer:
        await producer.push(0)
        assert await gate.arrived.wait(30)
        for i in range(1, 6):
            await producer.push(i)
        gate.opened.set()
        await producer.flush()
    assert gate.pushes == [1, 3, 2]


@pytest.mark.parametrize("limits", [{"buffer_messages_max": 2}, {"buffer_bytes_max": 2}])
async def test_push_waits_while_the_buffer_is_full(memory_client: AsyncClient, limits: dict[str, int]) -> None:
    gate = AsyncGate(memory_client._transport)
    producer = AsyncClient(gate).producer("orders", **limits)
    pushed: list[int] = []

    async def push_all() -> None:
        for i in range(5):
            await producer.push(i)
            pushed.append(i)

    pushing = Task(push_all, name="test-push")
    assert await gate.arrived.wait(30)

    async def buffer_is_full() -> bool:
        return pushed == [0, 1]

    await until(buffer_is_full)
    assert not await pushing.join(0.05)
    assert pushed == [0, 1]
    gate.opened.set()
    await ended(pushing)
    await producer.close()
    assert (await memory_client.queue("orders")).messages == 5


async def test_linger_fills_a_batch(memory_client: AsyncClient) -> None:
    gate = AsyncGate(memory_client._transport)
    gate.opened.set()
    async with AsyncClient(gate).producer("orders", batch_messages_max=3, linger_seconds=3600) as producer:
        for i in range(3):
            await producer.push(i)
        assert await gate.arrived.wait(30)
        await producer.push(3)
        await producer.flush()
    assert gate.pushes == [3, 1]


async def test_failure_is_told_and_raised_by_flush_once(client: AsyncClient) -> None:
    await client.configure("small", max_size=2)
    told: list[tuple[Exception, int]] = []

    def on_error(error: Exception, messages: list[Any]) -> None:
        told.append((error, len(messages)))

    producer = client.producer("small", batch_messages_max=1, on_error=on_error)
    for i in range(4):
        await producer.push(i)
    with pytest.raises(QueueFull) as caught:
        await producer.flush()
    assert caught.value.details["failed"] == 2
    assert [(type(error), count) for error, count in told] == [(QueueFull, 1), (QueueFull, 1)]
    await producer.flush()
    await producer.close()


async def test_failure_leaves_the_block(client: AsyncClient) -> None:
    await client.configure("small", max_size=1)

    async def push_two(then: type[Exception] | None) -> None:
        async with client.producer("small") as producer:
            await producer.push(1)
            await producer.push(2)
            if then is not None:
                raise then

    with pytest.raises(QueueFull):
        await push_two(None)
    with pytest.raises(ZeroDivisionError):
        await push_two(ZeroDivisionError)


async def test_refused_message_does_not_take_its_neighbours_along() -> None:
    engine = Engine(MemoryStore(), Config(payload_bytes_max=10, push_messages_max=4))
    async with AsyncClient(AsyncEngineTransport(engine)) as client:
        failed: list[bytes] = []

        def on_error(_: Exception, messages: list[Any]) -> None:
            failed.extend(message.payload for message in messages)

        producer = client.producer("orders", linger_seconds=3600, on_error=on_error)
        for i in range(9):
            await producer.push("x" * 20 if i == 4 else i)
        with pytest.raises(TooLarge):
            await producer.close()
        assert failed == [b'"' + b"x" * 20 + b'"']
        stored = await client.pop("orders", batch=10)
        assert stored.payloads() == [0, 1, 2, 3, 5, 6, 7, 8]


async def test_closed_client_flushes_its_producers(memory_client: AsyncClient) -> None:
    gate = AsyncGate(memory_client._transport)
    gate.opened.set()
    client = AsyncClient(gate)
    producer = client.producer("orders", linger_seconds=3600)
    await producer.push(1)
    broken = client.producer("small", linger_seconds=3600)
    await memory_client.configure("small", max_size=1)
    await broken.push(1)
    await broken.push(2)
    with pytest.raises(QueueFull):
        await client.close()
    assert gate.pushes == [1, 2] or gate.pushes == [2, 1]


async def test_failure_of_a_producer_that_nobody_holds_is_raised_by_close(memory_client: AsyncClient) -> None:
    gate = AsyncGate(memory_client._transport)
    gate.opened.set()
    client = AsyncClient(gate)
    await memory_client.configure("small", max_size=1)

    async def push_two() -> None:
        producer = client.producer("small")
        await producer.push(1)
        await producer.push(2)

    await push_two()

    async def both_are_settled() -> bool:
        return sum(gate.pushes) == 2

    await until(both_are_settled)
    await sleep(0)
    gc.collect()
    with pytest.raises(QueueFull):
        await client.close()


async def test_error_of_on_error_ends_nothing(memory_client: AsyncClient) -> None:
    await memory_client.configure("small", max_size=1)

    def on_error(_: Exception, __: Any) -> None:
        raise ZeroDivisionError

    producer = memory_client.producer("small", batch_messages_max=1, on_error=on_error)
    for i in range(3):
        await producer.push(i)
    with pytest.raises(QueueFull):
        await producer.close()


async def test_bad_input_is_refused_at_once(client: AsyncClient) -> None:
    producer = client.producer("orders")
    with pytest.raises(InvalidPayload):
        await producer.push(object())
    with pytest.raises(InvalidName):
        await producer.push(1, partition="")
    await producer.close()
    with pytest.raises(InvalidRequest, match="closed"):
        await producer.push(1)
    with pytest.raises(InvalidName):
        client.producer("")
    with pytest.raises(InvalidRequest, match="batch_messages_max"):
        client.producer("orders", batch_messages_max=0)
    with pytest.raises(InvalidRequest, match="linger_seconds"):
        client.producer("orders", linger_seconds=-1)
