"""Messages as an iterator."""

from __future__ import annotations

import msgspec
import pytest

from lockstep import AsyncClient, new_message
from lockstep.errors import InvalidRequest
from support.clock import SetClock

from .support import until


class Order(msgspec.Struct):
    id: int


async def push_numbers(client: AsyncClient, count: int, partition: str = "Default") -> None:
    await client.push_many([new_message("orders", i, partition=partition) for i in range(count)])


async def acked(client: AsyncClient) -> int:
    return sum(lag.acked for lag in await client.lag("orders"))


async def test_loop_sees_all_and_leaves_nothing(client: AsyncClient) -> None:
    await push_numbers(client, 25)
    seen = [message.payload async for message in client.consume("orders", idle_timeout_seconds=0.05)]
    assert seen == list(range(25))
    assert await acked(client) == 25
    assert await client.leases() == []


async def test_message_is_done_when_the_loop_comes_back(client: AsyncClient) -> None:
    await push_numbers(client, 3)
    async with client.consume("orders", ack_interval_seconds=0, idle_timeout_seconds=0.05) as messages:
        known = [await acked(client) async for _ in messages]
    assert known == [0, 1, 2]
    assert await acked(client) == 3


async def test_acks_are_gathered_within_the_interval(client: AsyncClient) -> None:
    await push_numbers(client, 3)
    async with client.consume("orders", ack_interval_seconds=3600, idle_timeout_seconds=0.05) as messages:
        known = [await acked(client) async for _ in messages]
    assert known == [0, 0, 0]
    assert await acked(client) == 3


async def test_error_that_leaves_the_block_is_a_failed_delivery(client: AsyncClient, clock: SetClock) -> None:
    await push_numbers(client, 4)

    async def fail_at_the_third() -> None:
        async with client.consume("orders") as messages:
            async for message in messages:
                if message.payload == 2:
                    raise ZeroDivisionError("by zero")

    with pytest.raises(ZeroDivisionError):
        await fail_at_the_third()
    assert await acked(client) == 2
    assert not await client.pop("orders")
    clock.advance(3600)
    again = await client.pop("orders", batch=10)
    assert [(message.payload, message.attempt) for message in again] == [(2, 2), (3, 2)]


async def test_break_keeps_what_is_done_and_gives_back_the_rest(client: AsyncClient) -> None:
    await push_numbers(client, 4)
    async with client.consume("orders") as messages:
        async for message in messages:
            if message.payload == 2:
                break
    again = await client.pop("orders", batch=10)
    assert [(message.payload, message.attempt) for message in again] == [(2, 1), (3, 1)]


async def test_break_out_of_a_bare_loop_gives_back_the_rest(client: AsyncClient) -> None:
    await push_numbers(client, 4)
    async for message in client.consume("orders"):
        if message.payload == 2:
            break

    async def given_back() -> bool:
        return await client.leases() == []

    await until(given_back)
    assert (await client.pop("orders", batch=10)).payloads() == [2, 3]


async def test_message_that_was_acknowledged_by_hand_is_not_given_back(client: AsyncClient) -> None:
    await push_numbers(client, 3)
    async with client.consume("orders") as messages:
        async for message in messages:
            await message.ack()
            break
    assert (await client.pop("orders", batch=10)).payloads() == [1, 2]


async def test_nack_by_hand_skips_the_rest_of_the_partition(client: AsyncClient, clock: SetClock) -> None:
    await push_numbers(client, 3, "a")
    await push_numbers(client, 3, "b")
    seen = []
    async with client.consume("orders", partitions=2, idle_timeout_seconds=0.05) as messages:
        async for message in messages:
            seen.append((message.partition, message.payload))
            if message.partition == "a" and message.payload == 1:
                await message.nack("no stock")
    assert sorted(seen) == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]
    assert await acked(client) == 4
    clock.advance(3600)
    assert (await client.pop("orders", batch=10)).payloads() == [1, 2]


async def test_payload_of_another_type_is_failed_and_passed(client: AsyncClient) -> None:
    await client.configure("orders", retry_limit=0)
    await client.push_many([new_message("orders", payload) for payload in ({"id": 1}, {"name": "x"}, {"id": 3})])
    consumer = client.consume("orders", as_type=Order, idle_timeout_seconds=0.05)
    assert [message.payload async for message in consumer] == [Order(1), Order(3)]
    [letter] = (await client.dead_letters(queue="orders")).items
    assert letter.message.seq == 2
    assert "InvalidPayload" in (letter.error or "")


async def test_auto_ack_loop(client: AsyncClient) -> None:
    await push_numbers(client, 3)
    consumer = client.consume("orders", auto_ack=True, idle_timeout_seconds=0.05)
    assert [message.payload async for message in consumer] == [0, 1, 2]
    assert await acked(client) == 3


async def test_lease_is_renewed_while_the_body_works(client: AsyncClient, clock: SetClock) -> None:
    await push_numbers(client, 1)
    async with client.consume("orders", lease_seconds=0.3, idle_timeout_seconds=0.05) as messages:
        async for message in messages:
            for _ in range(3):
                clock.advance(0.2)
                deadline = clock.ahead(0.3)

                async def renewed() -> bool:
                    return [lease.expires_at for lease in await client.leases()] == [deadline]  # noqa: B023

                await until(renewed)
            assert not message.delivery.lost
    assert await acked(client) == 1


async def test_closed_client_gives_back_what_its_loops_have_in_hand(memory_client: AsyncClient) -> None:
    await push_numbers(memory_client, 3)
    messages = memory_client.consume("orders")
    loop = messages.__aiter__()
    assert (await anext(loop)).payload == 0
    await messages.close()
    assert await memory_client.leases() == []
    with pytest.raises(StopAsyncIteration):
        await anext(loop)


async def test_bad_input_is_refused_before_the_loop_begins(client: AsyncClient) -> None:
    with pytest.raises(InvalidRequest, match="ack_interval_seconds"):
        client.consume("orders", ack_interval_seconds=-1)
    with pytest.raises(InvalidRequest, match="batch"):
        await anext(client.consume("orders", batch=0).__aiter__())
