"""Work queues: shared groups, expiry, dead queues, balance and their administration."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lockstep import Ack, AsyncClient, new_message
from lockstep.errors import Conflict, InvalidOption, LeaseLost, QueueNotFound, TransactionRolledBack
from support.clock import SetClock


async def push_numbers(client: AsyncClient, count: int) -> None:
    await client.push_many([new_message("jobs", i) for i in range(count)])


async def test_messages_of_a_shared_group_end_one_by_one(client: AsyncClient) -> None:
    await push_numbers(client, 4)
    delivery = await client.pop("jobs", group="g", mode="shared", batch=4)
    await delivery[2].ack()
    await delivery[0].retry()
    await delivery[3].dead("bad")
    [lag] = await client.lag("jobs", group="g")
    assert (lag.lag, lag.in_flight, lag.retrying) == (2, 1, 1)
    again = await client.pop("jobs", group="g", batch=4)
    assert again.payloads() == [0]
    await delivery[1].ack()
    with pytest.raises(LeaseLost):
        await delivery[0].ack()
    await again.ack()
    assert (await client.depth("jobs", "g")).pending == 0
    assert (await client.dead_letters(queue="jobs")).total == 1


async def test_whole_delivery_of_a_shared_group(client: AsyncClient) -> None:
    await push_numbers(client, 3)
    delivery = await client.pop("jobs", group="g", mode="shared", batch=3)
    await delivery.ack()
    assert (await client.depth("jobs", "g")).pending == 0


@pytest.mark.parametrize(("way", "attempt"), [("retry", 2), ("release", 1)])
async def test_giving_back_a_delivery_of_a_shared_group(client: AsyncClient, way: str, attempt: int) -> None:
    await push_numbers(client, 3)
    delivery = await client.pop("jobs", group="g", mode="shared", batch=3)
    await delivery[1].ack()
    await getattr(delivery, way)()
    again = await client.pop("jobs", group="g", batch=3)
    assert (again.payloads(), [message.attempt for message in again]) == ([0, 2], [attempt, attempt])


async def test_retries_of_a_shared_group_have_an_end_and_releases_have_none(client: AsyncClient) -> None:
    await client.configure("jobs", retry_limit=1)
    await push_numbers(client, 2)
    for attempt in (1, 2):
        delivery = await client.pop("jobs", group="g", mode="shared", batch=2)
        assert [message.attempt for message in delivery] == [attempt, 1]
        await delivery[0].retry()
        await delivery[1].release()
    assert (await client.pop("jobs", group="g", batch=2)).payloads() == [1]
    assert [letter.attempts for letter in (await client.dead_letters(queue="jobs")).items] == [2]


async def test_consumer_that_leaves_its_loop_charges_nothing(client: AsyncClient) -> None:
    await client.configure("jobs", retry_limit=0)
    await push_numbers(client, 1)
    for _ in range(3):
        async with client.consume("jobs", group="g", mode="shared") as consumer:
            async for message in consumer:
                assert (message.payload, message.attempt) == (0, 1)
                break
    assert (await client.dead_letters(queue="jobs")).total == 0


async def test_retry_at_a_time(client: AsyncClient) -> None:
    await push_numbers(client, 2)
    delivery = await client.pop("jobs", group="g", mode="shared", batch=2)
    later = datetime.now(UTC) + timedelta(hours=1)
    await delivery[0].retry(retry_at=later)
    await delivery[1].nack("no", retry_at=later)
    assert not await client.pop("jobs", group="g", batch=2)
    [lag] = await client.lag("jobs", group="g")
    assert (lag.lag, lag.retrying) == (2, 2)


@pytest.mark.parametrize("mode", ["ordered", "shared"])
@pytest.mark.parametrize("verb", ["nack", "retry"])
async def test_whole_delivery_comes_again_at_a_time(client: AsyncClient, verb: str, mode: Any) -> None:
    await push_numbers(client, 2)
    delivery = await client.pop("jobs", group="g", mode=mode, batch=2)
    later = datetime.now(UTC) + timedelta(hours=1)
    await getattr(delivery, verb)(retry_at=later)
    assert not await client.pop("jobs", group="g", batch=2)
    [lag] = await client.lag("jobs", group="g")
    assert (lag.lag, lag.due_at) == (2, later)


async def test_consumer_of_a_shared_group_acknowledges_what_it_did(client: AsyncClient) -> None:
    await push_numbers(client, 5)
    consumer = client.consume("jobs", group="g", mode="shared", batch=2, idle_timeout_seconds=0.05)
    seen = [message.payload async for message in consumer]
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert (await client.depth("jobs", "g")).pending == 0


async def test_group_keeps_its_mode(client: AsyncClient) -> None:
    await client.configure("jobs")
    assert (await client.subscribe("jobs", "g", mode="shared")).mode == "shared"
    with pytest.raises(Conflict):
        await client.pop("jobs", group="g", mode="ordered")


async def test_atomic_acks(client: AsyncClient) -> None:
    await push_numbers(client, 2)
    delivery = await client.pop("jobs", group="g", mode="shared", batch=2)
    [one, two] = [
        Ack(lease_id=delivery.lease_id, partition_id=message.partition_id, seq=message.seq, group="g")
        for message in delivery
    ]
    lost = Ack(lease_id="00000000-0000-7000-8000-000000000000", partition_id=two.partition_id, seq=two.seq, group="g")
    with pytest.raises(TransactionRolledBack):
        await client.ack([one, lost], atomic=True)
    assert [outcome.success for outcome in await client.ack([one, two], atomic=True)] == [True, True]


async def test_expiry_on_push(client: AsyncClient, clock: SetClock) -> None:
    past = clock() - timedelta(hours=1)
    await client.push("jobs", 1, expires_at=past)
    await client.push("jobs", 2, expire_seconds=600)
    delivery = await client.pop("jobs", batch=5)
    assert delivery.payloads() == [2]
    assert delivery[0].expires_at is not None
    [letter] = (await client.dead_letters(queue="jobs")).items
    assert letter.error == "expired"


async def test_dead_queue_and_back(client: AsyncClient) -> None:
    await client.configure("dead")
    await client.configure("jobs", dead_queue="dead")
    await push_numbers(client, 2)
    await (await client.pop("jobs", batch=2)).dead("bad")
    copies = [view.message for view in (await client.messages("dead")).items]
    assert [(copy.headers or {})["lockstep-dead-from-error"] for copy in copies] == ["bad", "bad"]
    assert await client.redrive_queue("dead", limit=1) == 1
    assert await client.redrive_queue("dead") == 1
    assert (await client.pop("jobs", batch=5)).payloads() == [0, 1]


async def test_balanced_queue(client: AsyncClient) -> None:
    await client.configure("jobs", partitions=2)
    assert {(await client.push("jobs", 1)).partition for _ in range(12)} == {"0", "1"}


async def test_update_and_stats(client: AsyncClient) -> None:
    with pytest.raises(QueueNotFound):
        await client.update_queue("jobs", lease_seconds=5)
    await client.configure("jobs", retry_limit=9)
    updated = await client.update_queue("jobs", lease_seconds=5, task="mail")
    assert (updated.options.lease_seconds, updated.options.retry_limit, updated.task) == (5, 9, "mail")
    with pytest.raises(InvalidOption):
        await client.update_queue("jobs", expire_seconds=1)
    await push_numbers(client, 2)
    [stats] = await client.stats("jobs")
    assert (stats.partition, stats.total, stats.leased) == ("Default", 2, 0)
    assert [queue.name for queue in await client.queues(from_name="jobs")] == ["jobs"]
