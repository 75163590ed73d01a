"""The verbs that look after queues, groups, messages and dead letters."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lockstep import AsyncClient, PendingRequest, Position, QueueOptions, new_message
from lockstep.errors import (
    DeadLetterNotFound,
    GroupNotFound,
    InvalidOption,
    InvalidRequest,
    MessageNotFound,
    PartitionNotFound,
    QueueNotFound,
    SparkStreamNotFound,
)
from support.clock import SetClock


async def test_queues(client: AsyncClient, clock: SetClock) -> None:
    await client.ping()
    info = await client.configure("shop.orders", lease_seconds=60, retry_backoff=2.0, namespace="n", task="t")
    assert (info.options.lease_seconds, info.options.retry_backoff, info.namespace) == (60, 2.0, "n")
    assert info.created_at == clock()
    changed = await client.configure("shop.orders", info.options, retry_limit=9)
    assert (changed.options.lease_seconds, changed.options.retry_limit) == (60, 9)
    assert (await client.configure("shop.orders")).options == QueueOptions()
    assert await client.queue("shop.orders") == (await client.queues(namespace="n", task="t"))[0]
    assert await client.queues(after="shop.orders") == []
    assert await client.delete_queue("shop.orders") is True
    assert await client.delete_queue("shop.orders") is False
    with pytest.raises(InvalidOption, match="no queue option"):
        await client.configure("orders", no_such_option=1)


async def test_partitions_and_clear(client: AsyncClient) -> None:
    await client.push_many([new_message("orders", i, partition=f"p{i % 2}") for i in range(4)])
    assert [partition.name for partition in await client.partitions("orders")] == ["p0", "p1"]
    assert (await client.partitions("orders", after="p0", limit=1))[0] == await client.partition("orders", "p1")
    assert await client.clear("orders", partition="p0") == 2
    assert await client.clear("orders", scope="unleased") == 2


async def test_groups(client: AsyncClient, clock: SetClock) -> None:
    await client.push_many([new_message("orders", i) for i in range(4)])
    group = await client.subscribe("orders", "late", clock.ahead(60))
    assert (group.subscription.mode, group.subscription.from_at) == ("from", clock.ahead(60))
    assert (await client.subscribe("orders", "g")).lag == 4
    assert [found.name for found in await client.groups(queue="orders")] == ["g", "late"]
    assert await client.set_subscription("g", "new") == 1
    assert await client.has_pending([PendingRequest(queue="orders", group="g"), PendingRequest(queue="none")]) == [
        True,
        False,
    ]
    assert (await client.depth("orders", "g")).pending == 4
    assert [lag.lag for lag in await client.lag("orders", group="g")] == [4]
    assert await client.delete_group("g", queue="orders") == 1


async def test_spark_streams(client: AsyncClient) -> None:
    await client.push("orders", 1)
    assert await client.spark_streams(queue="orders") == []
    with pytest.raises(SparkStreamNotFound):
        await client.forget_spark_stream("nobody")
    with pytest.raises(SparkStreamNotFound):
        await client.accept_spark_stream("nobody")


async def test_seek(client: AsyncClient, clock: SetClock) -> None:
    await client.push_many([new_message("orders", i) for i in range(3)])
    await client.subscribe("orders", "g")

    async def lag() -> int:
        return (await client.depth("orders", "g")).pending

    assert await client.seek("orders", "g", "end") == 1
    assert await lag() == 0
    await client.seek("orders", "g", 2, partition="Default")
    assert await lag() == 2
    await client.seek("orders", "g", "start")
    assert await lag() == 3
    await client.seek("orders", "g", clock.ahead(1))
    assert await lag() == 0
    await client.seek("orders", "g", Position("seq", seq=3))
    await client.seek("orders", "g", "current")
    assert await lag() == 1
    with pytest.raises(InvalidRequest, match="a seek goes to"):
        await client.seek("orders", "g", "middle")  # type: ignore[arg-type]


async def test_pause_group(client: AsyncClient) -> None:
    await client.push("orders", 1)
    await client.subscribe("orders", "g")
    await client.pause_group("orders", "g")
    [group] = await client.groups(queue="orders")
    assert group.paused_at is not None
    assert not await client.pop("orders", group="g")
    await client.pause_group("orders", "g", paused=False)
    assert await client.pop("orders", group="g")


async def test_messages(client: AsyncClient, clock: SetClock) -> None:
    [receipt, *_] = await client.push_many([new_message("orders", i, headers={"i": "1"}) for i in range(3)])
    page = await client.messages("orders", limit=2)
    assert [view.message.payload for view in page.items] == [b"0", b"1"]
    rest = await client.messages("orders", cursor=page.next_cursor, status="pending", to_at=clock.ahead(1))
    newest = await client.messages("orders", newest_first=True, limit=1)
    assert [view.message.seq for view in newest.items] == [3]
    assert [view.message.payload for view in rest.items] == [b"2"]
    view = await client.message(receipt.message_id)
    assert (view.message.headers, view.status, view.message.created_at) == ({"i": "1"}, "pending", clock())
    assert await client.message(receipt.transaction_id, partition_id=receipt.partition_id) == view


async def test_dead_letters(client: AsyncClient) -> None:
    await client.push_many([new_message("orders", i, partition=f"p{i}") for i in range(3)])
    await (await client.pop("orders", batch=3, partitions=3)).dead("cannot be read")
    page = await client.dead_letters(queue="orders", limit=2)
    assert (len(page.items), page.total) == (2, 3)
    letter = page.items[0]
    assert await client.dead_letter(letter.id) == letter
    assert await client.redrive(ids=[letter.id]) == 1
    assert await client.purge(queue="orders", partition="p0") == 1
    assert (await client.dead_letters()).total == 1


async def test_operations(client: AsyncClient, clock: SetClock) -> None:
    await client.push("orders", 1)
    delivery = await client.pop("orders", lease_seconds=30)
    [lease] = await client.leases(queue="orders", expiring_within=timedelta(seconds=60))
    assert (lease.lease_id, lease.expires_at) == (delivery.lease_id, clock.ahead(30))
    assert await client.leases(expiring_within=timedelta(seconds=1)) == []
    assert [use.partitions_leased for use in await client.utilisation(queue="orders")] == [1]
    assert await client.verify() == []
    assert await client.repair(queue="orders") == []


async def test_labels_and_overview(client: AsyncClient) -> None:
    await client.push("shop.orders", 1)
    await client.push("shop.bills", 1)
    assert [(label.name, label.queues) for label in await client.namespaces()] == [("shop", 2)]
    assert [label.name for label in await client.tasks(after="bills")] == ["orders"]
    assert ((await client.overview()).queues, (await client.overview()).messages) == (2, 2)
    assert (await client.database_stats()).bytes >= 0


async def test_single_messages_are_looked_after(client: AsyncClient) -> None:
    receipts = await client.push_many([new_message("orders", i) for i in range(3)])
    places = [(receipt.partition_id, receipt.transaction_id) for receipt in receipts]
    await client.subscribe("orders", "g")
    letter = await client.bury_message(*places[0], group="g", error="by hand")
    assert (await client.dead_letter(letter)).error == "by hand"
    assert (await client.retry_message(*places[0])).seq == 4
    await client.remove_message(*places[1])
    with pytest.raises(MessageNotFound):
        await client.message(places[1][1], partition_id=places[1][0])


async def test_traces(client: AsyncClient) -> None:
    receipt = await client.push("orders", 1)
    place = (receipt.partition_id, receipt.transaction_id)
    event = await client.record_trace(*place, {"step": 1}, event_type="paid", group="g", names=["order-1", "x"])
    [found] = await client.traces_of_message(*place)
    assert (found.id, found.data, found.event_type, found.names) == (event, b'{"step":1}', "paid", ("order-1", "x"))
    page = await client.traces_by_name("order-1")
    assert [(item.event.id, item.message and item.message.payload) for item in page.items] == [(event, b"1")]
    assert [name.name for name in (await client.trace_names(limit=1)).items] == ["order-1"]


async def test_what_the_duties_did_can_be_looked_at(client: AsyncClient, clock: SetClock) -> None:
    assert await client.duties() == []
    assert await client.samples(from_at=clock.ago(60), to_at=clock()) == []
    assert await client.removals(queue=None) == []


async def test_what_is_not_there_has_its_own_error(client: AsyncClient) -> None:
    with pytest.raises(QueueNotFound):
        await client.queue("none")
    await client.push("orders", 1)
    with pytest.raises(PartitionNotFound):
        await client.partition("orders", "none")
    with pytest.raises(GroupNotFound):
        await client.depth("orders", "none")
    with pytest.raises(MessageNotFound):
        await client.message("00000000-0000-7000-8000-000000000000")
    with pytest.raises(DeadLetterNotFound):
        await client.dead_letter(1)
