"""Messages for later, and recurring ones."""

from __future__ import annotations

import pytest

from lockstep import AsyncClient, new_message
from lockstep.errors import CronNotFound, InvalidRequest, ScheduleNotFound
from support.clock import SetClock


async def test_message_for_later_is_delivered_when_it_is_due(client: AsyncClient, clock: SetClock) -> None:
    receipt = await client.push("orders", {"n": 1}, deliver_at=clock.ahead(60), schedule_key="reminder")
    assert (receipt.status, receipt.due_at) == ("scheduled", clock.ahead(60))
    waiting = await client.schedule(queue="orders", key="reminder")
    assert (waiting.id, waiting.json(), waiting.queue) == (receipt.schedule_id, {"n": 1}, "orders")
    clock.advance(60)
    delivery = await client.pop("orders", wait=True)
    assert [message.payload for message in delivery.messages] == [{"n": 1}]
    with pytest.raises(ScheduleNotFound):
        await client.schedule(receipt.schedule_id)
    assert await client.cancel_schedule(receipt.schedule_id) is False


async def test_schedules_are_listed_moved_and_cancelled(client: AsyncClient, clock: SetClock) -> None:
    receipts = await client.push_many(
        [new_message("orders", number, delay_seconds=60 * number, schedule_key=f"k{number}") for number in (1, 2, 3)]
    )
    page = await client.schedules(queue="orders", limit=2)
    assert [waiting.json() for waiting in page.items] == [1, 2]
    rest = await client.schedules(queue="orders", cursor=page.next_cursor)
    assert [waiting.json() for waiting in rest.items] == [3]
    moved = await client.reschedule(receipts[0].schedule_id, delay_seconds=600)
    assert moved.due_at == clock.ahead(600)
    moved = await client.reschedule(queue="orders", key="k2", deliver_at=clock.ahead(700))
    assert moved.due_at == clock.ahead(700)
    assert [waiting.key for waiting in (await client.schedules(key_prefix="k")).items] == ["k3", "k1", "k2"]
    assert len((await client.schedules(from_at=clock.ahead(600), to_at=clock.ahead(700))).items) == 1
    assert await client.cancel_schedule(queue="orders", key="k3") is True
    assert await client.cancel_schedule(queue="orders", key="k3") is False
    with pytest.raises(ScheduleNotFound):
        await client.reschedule(queue="orders", key="k3", delay_seconds=1)
    with pytest.raises(InvalidRequest):
        await client.schedule()
    with pytest.raises(InvalidRequest):
        await client.push("orders", 1, deliver_at=clock.now.replace(tzinfo=None))


async def test_transaction_and_producer_schedule(client: AsyncClient) -> None:
    async with client.transaction() as transaction:
        transaction.push("orders", 1, delay_seconds=60)
        transaction.push("orders", 2)
    assert transaction.result is not None
    assert [receipt.status for receipt in transaction.result.receipts] == ["scheduled", "queued"]
    assert transaction.result.receipts[0].schedule_id is not None
    async with client.producer("orders") as producer:
        await producer.push(3, delay_seconds=120)
    assert [waiting.json() for waiting in (await client.schedules(queue="orders")).items] == [1, 3]


async def test_crons(client: AsyncClient, clock: SetClock) -> None:
    made = await client.set_cron("nightly", "jobs", "0 3 * * *", {"job": "report"}, timezone="Europe/Berlin")
    assert (made.next_at, made.catch_up) == (clock.now.replace(day=2, hour=1), "skip")
    assert await client.crons() == [made] == [await client.cron("nightly")]
    assert (await client.enable_cron("nightly", False)).next_at is None
    assert (await client.enable_cron("nightly")).next_at == made.next_at
    assert await client.remove_cron("nightly") is True
    assert await client.remove_cron("nightly") is False
    with pytest.raises(CronNotFound):
        await client.cron("nightly")
    with pytest.raises(InvalidRequest, match="cron expression"):
        await client.set_cron("nightly", "jobs", "at night")


async def test_cron_pushes(client: AsyncClient, clock: SetClock) -> None:
    await client.set_cron("ticks", "jobs", "* * * * *", {"tick": True}, headers={"a": "b"})
    clock.advance(60)
    delivery = await client.pop("jobs", wait=True)
    [message] = delivery.messages
    assert (message.payload, message.headers) == ({"tick": True}, {"a": "b"})
