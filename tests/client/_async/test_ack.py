"""The ways to end a delivery."""

from __future__ import annotations

import pytest

from lockstep import Ack, AsyncClient, Renewal, new_message
from lockstep.errors import Conflict, LeaseLost
from support.clock import SetClock


async def push_numbers(client: AsyncClient, count: int, partition: str = "Default") -> None:
    await client.push_many([new_message("orders", i, partition=partition) for i in range(count)])


async def test_ack_of_all(client: AsyncClient) -> None:
    await push_numbers(client, 3)
    delivery = await client.pop("orders", batch=3)
    await delivery.ack()
    await delivery.ack()
    [lag] = await client.lag("orders")
    assert (lag.lag, lag.leased) == (0, False)


async def test_ack_of_all_over_several_partitions(client: AsyncClient) -> None:
    for partition in ("a", "b"):
        await push_numbers(client, 2, partition)
    delivery = await client.pop("orders", batch=10, partitions=10)
    await delivery.ack()
    assert [lag.lag for lag in await client.lag("orders")] == [0, 0]


async def test_ack_of_a_message_commits_what_comes_before_it(client: AsyncClient) -> None:
    await push_numbers(client, 4)
    delivery = await client.pop("orders", batch=4)
    await delivery[1].ack()
    [lag] = await client.lag("orders")
    assert (lag.acked, lag.leased) == (2, True)
    await delivery[0].ack()
    await delivery[3].ack()
    [lag] = await client.lag("orders")
    assert (lag.acked, lag.leased) == (4, False)


async def test_nack_delivers_again_after_the_delay(client: AsyncClient, clock: SetClock) -> None:
    await client.configure("orders", retry_delay_ms=5000)
    await push_numbers(client, 2)
    delivery = await client.pop("orders", batch=2)
    await delivery.nack("no stock")
    assert not await client.pop("orders")
    clock.advance(5)
    again = await client.pop("orders", batch=2)
    assert [(message.payload, message.attempt) for message in again] == [(0, 2), (1, 2)]


async def test_nack_of_a_message_keeps_what_was_acknowledged(client: AsyncClient, clock: SetClock) -> None:
    await push_numbers(client, 3)
    delivery = await client.pop("orders", batch=3)
    await delivery[0].ack()
    await delivery[1].nack("no stock")
    with pytest.raises(LeaseLost):
        await delivery[2].ack()
    clock.advance(3600)
    assert (await client.pop("orders", batch=3)).payloads() == [1, 2]


async def test_exhausted_message_is_a_dead_letter_with_its_error(client: AsyncClient) -> None:
    await client.configure("orders", retry_limit=0)
    await push_numbers(client, 2)
    await (await client.pop("orders", batch=2)).nack("no stock")
    page = await client.dead_letters(queue="orders")
    assert [(letter.message.seq, letter.error, letter.attempts) for letter in page.items] == [(1, "no stock", 1)]
    assert (await client.pop("orders", batch=2)).payloads() == [1]


async def test_retry_charges_no_attempt(client: AsyncClient) -> None:
    await push_numbers(client, 2)
    delivery = await client.pop("orders", batch=2)
    await delivery.retry()
    again = await client.pop("orders", batch=2)
    assert [message.attempt for message in again] == [1, 1]
    await again[0].ack()
    await again[1].retry()
    assert (await client.pop("orders", batch=2)).payloads() == [1]


async def test_dead_takes_all_of_it(client: AsyncClient) -> None:
    await push_numbers(client, 3)
    delivery = await client.pop("orders", batch=3)
    await delivery[0].ack()
    await delivery.dead("cannot be read")
    page = await client.dead_letters(queue="orders")
    assert sorted((letter.message.seq, letter.error) for letter in page.items) == [
        (2, "cannot be read"),
        (3, "cannot be read"),
    ]
    assert not await client.pop("orders")


async def test_dead_message_lets_the_rest_go_on(client: AsyncClient) -> None:
    await push_numbers(client, 2)
    await (await client.pop("orders", batch=2))[0].dead("cannot be read")
    assert (await client.dead_letters()).total == 1
    assert (await client.pop("orders", batch=2)).payloads() == [1]


async def test_expired_lease_is_lost_for_every_ending(client: AsyncClient, clock: SetClock) -> None:
    await push_numbers(client, 1)
    deliveries = []
    for _ in range(4):
        deliveries.append(await client.pop("orders", lease_seconds=1))
        clock.advance(2)
    with pytest.raises(LeaseLost):
        await deliveries[0].ack()
    with pytest.raises(LeaseLost):
        await deliveries[1][0].nack("late")
    with pytest.raises(LeaseLost):
        await deliveries[2].renew()
    with pytest.raises(LeaseLost):
        await deliveries[3].retry()
    assert [delivery.lost for delivery in deliveries] == [True] * 4
    assert [lag.acked for lag in await client.lag("orders")] == [0]


async def test_renew_moves_the_deadline(client: AsyncClient, clock: SetClock) -> None:
    await push_numbers(client, 1)
    delivery = await client.pop("orders", lease_seconds=10)
    assert await delivery.renew(60) == clock.ahead(60)
    assert delivery.expires_at == clock.ahead(60)
    clock.advance(30)
    await delivery.ack()
    assert [lag.acked for lag in await client.lag("orders")] == [1]


async def test_nack_of_a_committed_message_is_a_conflict(client: AsyncClient) -> None:
    await push_numbers(client, 2)
    delivery = await client.pop("orders", batch=2)
    await delivery[0].ack()
    with pytest.raises(Conflict, match="committed"):
        await delivery[0].nack("too late")


async def test_acks_by_what_is_known_of_them(client: AsyncClient, clock: SetClock) -> None:
    await push_numbers(client, 2, "a")
    await push_numbers(client, 2, "b")
    first = await client.pop("orders", partition="a", batch=2, group="g", lease_seconds=10)
    second = await client.pop("orders", partition="b", batch=2)
    outcomes = await client.ack(
        [
            Ack(
                partition_id=first[0].partition_id, transaction_id=first[0].transaction_id, group="g",
                lease_id=first.lease_id,
            ),
            Ack(partition_id=first[0].partition_id, transaction_id="unknown", group="g"),
            Ack(lease_id=second.lease_id),
        ]
    )  # fmt: skip
    assert [(outcome.success, outcome.error) for outcome in outcomes] == [
        (True, None),
        (False, "unresolvable"),
        (True, None),
    ]
    [renewed, gone] = await client.renew(
        [Renewal(lease_id=first.lease_id or "", seconds=100), Renewal(lease_id=second.lease_id or "")]
    )
    assert (renewed.partitions, renewed.expires_at) == (1, clock.ahead(100))
    assert (gone.partitions, gone.expires_at) == (0, None)
    assert list(await client.ack([])) == list(await client.renew([])) == []
