"""Acks and pushes together."""

from __future__ import annotations

import pytest

from lockstep import AsyncClient, new_message
from lockstep.errors import InvalidRequest, QueueFull, TransactionRolledBack
from support.clock import SetClock


async def test_transaction_moves_a_message_on(client: AsyncClient) -> None:
    await client.push_many([new_message("orders", i) for i in range(3)])
    delivery = await client.pop("orders", batch=3)
    async with client.transaction() as transaction:
        transaction.ack(delivery[1])
        transaction.push("bills", {"of": 1}, partition="ann", kind="bill", headers={"a": "b"})
        transaction.push("bills", {"of": 2}, partition="ann", transaction_id="second")
    assert transaction.result is not None
    receipts = transaction.result.receipts
    assert [(r.queue, r.partition, r.seq, r.status) for r in receipts] == [
        ("bills", "ann", 1, "queued"),
        ("bills", "ann", 2, "queued"),
    ]
    assert receipts[1].transaction_id == "second"
    [outcome] = transaction.result.acks
    assert (outcome.success, outcome.noop, outcome.released, outcome.messages) == (True, False, False, 2)
    assert (outcome.queue, outcome.partition) == ("orders", "Default")
    assert [(m.payload, m.kind, m.headers) for m in await client.pop("bills", batch=1)] == [
        ({"of": 1}, "bill", {"a": "b"})
    ]
    await delivery.ack()
    assert [lag.lag for lag in await client.lag("orders")] == [0]


async def test_transaction_of_a_whole_delivery(client: AsyncClient) -> None:
    for partition in ("a", "b"):
        await client.push_many([new_message("orders", i, partition=partition) for i in range(2)])
    delivery = await client.pop("orders", batch=10, partitions=10)
    async with client.transaction() as transaction:
        transaction.ack(delivery)
    assert [lag.lag for lag in await client.lag("orders")] == [0, 0]
    await delivery.ack()


async def test_error_in_the_block_applies_nothing(client: AsyncClient) -> None:
    await client.push("orders", 1)
    delivery = await client.pop("orders")
    transaction = client.transaction()

    async def fail() -> None:
        async with transaction:
            transaction.ack(delivery)
            transaction.push("bills", 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert transaction.result is None
    assert [queue.name for queue in await client.queues()] == ["orders"]
    await delivery.ack()


async def test_lost_lease_rolls_everything_back(client: AsyncClient, clock: SetClock) -> None:
    await client.push("orders", 1)
    delivery = await client.pop("orders", lease_seconds=1)
    clock.advance(2)
    transaction = client.transaction()
    transaction.push("bills", 1)
    transaction.ack(delivery)
    with pytest.raises(TransactionRolledBack) as caught:
        await transaction.commit()
    assert [outcome.error for outcome in caught.value.details["outcomes"]] == ["lease_lost"]
    assert [queue.name for queue in await client.queues()] == ["orders"]


async def test_full_queue_rolls_everything_back(client: AsyncClient) -> None:
    await client.configure("bills", max_size=1)
    await client.push("orders", 1)
    delivery = await client.pop("orders")
    transaction = client.transaction()
    transaction.ack(delivery)
    transaction.push("bills", 1)
    transaction.push("bills", 2)
    with pytest.raises(QueueFull) as caught:
        await transaction.commit()
    assert caught.value.details == {"queue": "bills", "depth": 0, "max_size": 1}
    assert [lag.acked for lag in await client.lag("orders")] == [0]
    await delivery.ack()


async def test_transaction_is_used_once(client: AsyncClient) -> None:
    async with client.transaction() as transaction:
        transaction.push("bills", 1)
        assert (await transaction.commit()).receipts[0].seq == 1
    with pytest.raises(InvalidRequest, match="is over"):
        transaction.push("bills", 2)
    with pytest.raises(InvalidRequest, match="is over"):
        await transaction.commit()
    async with client.transaction() as empty:
        pass
    assert empty.result is not None
    assert (await client.queue("bills")).messages == 1
