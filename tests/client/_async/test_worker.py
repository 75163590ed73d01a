"""Functions that are called for messages."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest

from lockstep import AsyncClient, connect_async, new_message
from lockstep.client._async.concurrency import Event, Task
from lockstep.client._async.delivery import AsyncDelivery
from lockstep.errors import InvalidRequest, LeaseLost
from support.clock import SetClock

from .support import PATIENCE_SECONDS, ended, running, until


class Order(msgspec.Struct):
    id: int


async def push_numbers(client: AsyncClient, count: int, partition: str = "Default") -> None:
    await client.push_many([new_message("orders", i, partition=partition) for i in range(count)])


async def acked(client: AsyncClient) -> int:
    return sum(lag.acked for lag in await client.lag("orders"))


async def test_drain_may_take_for_ever(memory_client: AsyncClient) -> None:
    await push_numbers(memory_client, 1)

    @memory_client.worker("orders", ack_interval_seconds=inf)
    async def handle(_: Any) -> None:
        memory_client.stop()

    await memory_client.run(stop_on_signals=False, drain_timeout_seconds=inf)
    assert await acked(memory_client) == 1


async def test_closed_client_drains_its_workers(server_url: str) -> None:
    client = connect_async(server_url)
    await push_numbers(client, 2)
    working, go_on = Event(), Event()

    @client.worker("orders")
    async def handle(_: Any) -> None:
        working.set()
        assert await go_on.wait(PATIENCE_SECONDS)

    run = running(client)
    assert await working.wait(PATIENCE_SECONDS)
    closing = Task(client.close, name="test-close")
    assert not await closing.join(0.05)
    go_on.set()
    await ended(closing)
    await ended(run)
    async with connect_async(server_url) as other:
        assert await acked(other) == 1
        assert await other.leases() == []


async def test_handler_may_close_its_client(memory_client: AsyncClient) -> None:
    await push_numbers(memory_client, 1)

    @memory_client.worker("orders")
    async def handle(_: Any) -> None:
        await memory_client.close()

    await ended(running(memory_client))


async def test_lanes_handle_every_message_once_and_in_order(client: AsyncClient) -> None:
    for partition in range(6):
        await push_numbers(client, 10, f"p{partition}")
    seen: dict[str, list[int]] = {}

    @client.worker("orders", concurrency=3, batch=4)
    async def handle(message: Any) -> None:
        seen.setdefault(message.partition, []).append(message.payload)
        if sum(map(len, seen.values())) == 60:
            client.stop()

    await ended(running(client))
    assert seen == {f"p{partition}": list(range(10)) for partition in range(6)}
    assert await acked(client) == 60
    assert await client.leases() == []


async def test_error_is_a_failed_delivery_and_the_worker_goes_on(client: AsyncClient) -> None:
    await client.configure("orders", retry_limit=0)
    await push_numbers(client, 3)
    told: list[tuple[str, int]] = []

    def on_error(error: Exception, message: Any) -> None:
        told.append((str(error), message.payload))

    @client.worker("orders", on_error=on_error)
    async def handle(message: Any) -> None:
        if message.payload == 1:
            raise ValueError("no stock")
        if message.payload == 2:
            client.stop()

    await ended(running(client))
    assert told == [("no stock", 1)]
    [letter] = (await client.dead_letters(queue="orders")).items
    assert (letter.message.seq, letter.error) == (2, "ValueError: no stock")
    assert await acked(client) == 3


async def test_failed_message_comes_again_after_its_delay(client: AsyncClient, clock: SetClock) -> None:
    await client.configure("orders", retry_delay_ms=1000)
    await push_numbers(client, 1)
    attempts: list[int] = []

    @client.worker("orders")
    async def handle(message: Any) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            clock.advance(0.5)
            raise ValueError("not yet")
        client.stop()

    run = running(client)
    for expected in (1, 2):

        async def failed() -> bool:
            lags = await client.lag("orders")
            return [lag.attempts for lag in lags] == [expected]  # noqa: B023

        await until(failed)
        clock.advance(1)
    await ended(run)
    assert attempts == [1, 2, 3]


async def test_whole_deliveries(client: AsyncClient) -> None:
    await client.configure("orders", retry_limit=0)
    await push_numbers(client, 5)
    sizes: list[int] = []

    @client.worker("orders", batch=3, whole=True)
    async def handle(delivery: AsyncDelivery) -> None:
        sizes.append(len(delivery))
        if len(sizes) == 1:
            raise ValueError("the first fails")
        if delivery[-1].payload == 4:
            client.stop()

    await ended(running(client))
    assert sizes == [3, 3, 1]
    assert [letter.message.seq for letter in (await client.dead_letters()).items] == [1]
    assert await acked(client) == 5


async def test_typed_worker_fails_what_does_not_fit(client: AsyncClient) -> None:
    await client.configure("orders", retry_limit=0)
    await client.push("orders", {"name": "x"})
    await client.push("orders", {"id": 7})
    seen: list[Any] = []

    @client.worker("orders", as_type=Order)
    async def handle(message: Any) -> None:
        seen.append(message.payload)
        client.stop()

    await ended(running(client))
    assert seen == [Order(7)]
    assert (await client.dead_letters()).total == 1


async def test_handler_may_end_the_delivery_itself(client: AsyncClient) -> None:
    await push_numbers(client, 4)
    seen: list[int] = []

    @client.worker("orders", batch=4)
    async def handle(message: Any) -> None:
        seen.append(message.payload)
        if message.payload == 0:
            await message.ack()
        if message.payload == 1:
            async with client.transaction() as transaction:
                transaction.ack(message)
                transaction.push("bills", message.payload)
        if message.payload == 2:
            client.stop()
            await message.dead("cannot be read")

    await ended(running(client))
    assert seen == [0, 1, 2]
    assert (await acked(client), (await client.dead_letters()).total) == (3, 1)
    assert (await client.pop("orders")).payloads() == [3]


async def test_lease_is_renewed_by_the_queues_own_time(client: AsyncClient, clock: SetClock) -> None:
    await client.configure("orders", lease_seconds=1)
    await push_numbers(client, 1)
    lost: list[bool] = []

    @client.worker("orders")
    async def handle(message: Any) -> None:
        for _ in range(3):
            clock.advance(0.7)
            deadline = clock.ahead(1)

            async def renewed() -> bool:
                return [lease.expires_at for lease in await client.leases()] == [deadline]  # noqa: B023

            await until(renewed)
        lost.append(message.delivery.lost)
        client.stop()

    await ended(running(client))
    assert lost == [False]
    assert await acked(client) == 1


async def test_lost_lease_is_noticed_and_nothing_is_acknowledged(client: AsyncClient, clock: SetClock) -> None:
    await push_numbers(client, 2)
    errors: list[type[Exception]] = []

    def on_error(error: Exception, _: Any) -> None:
        errors.append(type(error))

    @client.worker("orders", lease_seconds=0.3, on_error=on_error)
    async def handle(message: Any) -> None:
        clock.advance(10)

        async def lost() -> bool:
            return bool(message.delivery.lost)

        await until(lost)
        client.stop()

    await ended(running(client))
    assert errors == [LeaseLost]
    assert await acked(client) == 0


async def test_drain_finishes_what_runs_and_gives_back_the_rest(client: AsyncClient) -> None:
    await push_numbers(client, 3)
    started, go_on = Event(), Event()

    @client.worker("orders")
    async def handle(message: Any) -> None:  # noqa: ARG001
        started.set()
        assert await go_on.wait(PATIENCE_SECONDS)

    run = running(client)
    assert await started.wait(PATIENCE_SECONDS)
    client.stop()
    assert not await run.join(0.05)
    go_on.set()
    await ended(run)
    assert await acked(client) == 1
    again = await client.pop("orders", batch=10)
    assert [(message.payload, message.attempt) for message in again] == [(1, 1), (2, 1)]


async def test_drain_gives_back_what_does_not_end_in_time(client: AsyncClient) -> None:
    await push_numbers(client, 2)
    started, go_on = Event(), Event()

    @client.worker("orders")
    async def handle(message: Any) -> None:
        if message.payload == 1:
            started.set()
            await go_on.wait(PATIENCE_SECONDS)

    run = running(client, drain_timeout_seconds=0.0)
    assert await started.wait(PATIENCE_SECONDS)
    client.stop()
    await ended(run)
    assert await acked(client) == 1
    again = await client.pop("orders", batch=10)
    assert [(message.payload, message.attempt) for message in again] == [(1, 1)]
    go_on.set()
    await again.ack()


async def test_failure_for_good_ends_the_run(client: AsyncClient) -> None:
    @client.worker("orders", batch=0)
    async def handle(message: Any) -> None: ...

    @client.worker("orders")
    async def other(message: Any) -> None: ...

    run = running(client)
    assert await run.join(PATIENCE_SECONDS)
    with pytest.raises(InvalidRequest, match="batch"):
        run.result()


async def test_run_can_be_repeated(memory_client: AsyncClient) -> None:
    seen: list[int] = []

    @memory_client.worker("orders")
    async def handle(message: Any) -> None:
        seen.append(message.payload)
        memory_client.stop()

    for i in range(2):
        await memory_client.push("orders", i)
        await ended(running(memory_client))
    assert seen == [0, 1]


async def test_bad_input_is_refused_at_once(memory_client: AsyncClient) -> None:
    with pytest.raises(InvalidRequest, match="no worker"):
        await memory_client.run()
    with pytest.raises(InvalidRequest, match="concurrency"):
        memory_client.worker("orders", concurrency=0)
