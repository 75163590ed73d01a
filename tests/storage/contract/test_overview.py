"""Sums over namespaces, tasks and the whole store; and messages over many queues."""

from __future__ import annotations

import pytest

from lockstep.core.overview import LabelInfo, Overview, Spread
from lockstep.core.records import MessageFilter, Subscription
from lockstep.errors import QueueNotFound
from lockstep.storage.base import Store
from support.builders import ack, batch, dead_letter_by_dlq, pages, pop, push_n
from support.clock import SetClock


def label(name: str, queues: int, partitions: int, messages: int, pending: int) -> LabelInfo:
    return LabelInfo(name=name, queues=queues, partitions=partitions, messages=messages, pending=pending)


async def shop(store: Store) -> None:
    """Two namespaces and a queue without any: shop.orders (a, b), shop.mail.out, bank.orders and plain."""
    await store.push([batch("shop.orders", 2, partition="a"), batch("shop.orders", 3, partition="b")])
    await store.push([batch("shop.mail.out", 1), batch("bank.orders", 4), batch("plain", 1)])


# --- Namespaces and tasks


async def test_namespaces_and_tasks_with_their_sums(store: Store) -> None:
    await shop(store)
    await pop(store, "shop.orders", group="g", batch=4, partitions=2, auto_ack=True)
    await pop(store, "bank.orders", batch=4, auto_ack=True)
    assert await store.namespaces() == [
        label("bank", 1, 1, 4, 0),
        label("plain", 1, 1, 1, 1),
        label("shop", 2, 3, 6, 2),
    ]
    assert await store.tasks() == [label("", 1, 1, 1, 1), label("mail", 1, 1, 1, 1), label("orders", 2, 3, 9, 1)]


async def test_namespaces_have_pages(store: Store) -> None:
    await shop(store)
    assert [one.name for one in await store.namespaces(limit=2)] == ["bank", "plain"]
    assert [one.name for one in await store.namespaces(after="bank", limit=1)] == ["plain"]
    assert [one.name for one in await store.tasks(after="")] == ["mail", "orders"]


async def test_empty_store_has_none(store: Store) -> None:
    assert (await store.namespaces(), await store.tasks()) == ([], [])


# --- Overview


async def test_overview_of_an_empty_store(store: Store) -> None:
    assert await store.overview() == Overview(
        queues=0,
        partitions=0,
        namespaces=0,
        tasks=0,
        messages=0,
        pending=0,
        processing=0,
        completed=0,
        dead_letters=0,
        cursors_with_lag=0,
        lag_seconds=Spread(),
        lag_messages=Spread(),
    )


async def test_overview_sums_up(store: Store) -> None:
    await shop(store)
    await pop(store, "shop.orders", group="g", batch=1, auto_ack=True)
    await pop(store, "shop.orders", group="g", partition="b", batch=2)
    await pop(store, "bank.orders", batch=4, auto_ack=True)
    await dead_letter_by_dlq(store, "plain", 1, partition="p")
    found = await store.overview()
    assert (found.queues, found.partitions, found.namespaces, found.tasks) == (4, 6, 3, 3)
    # pending: 4 of shop.orders, 1 of shop.mail.out, which nobody reads, 1 of plain.
    assert (found.messages, found.pending, found.processing, found.completed) == (12, 6, 2, 6)
    assert found.dead_letters == 1


async def test_overview_tells_how_far_behind_cursors_are(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 1, partition="a")
    clock.advance(10)
    await push_n(store, "q", 2, partition="b")
    clock.advance(20)
    await push_n(store, "q", 5, partition="a", start=2)
    await push_n(store, "unread", 100)
    await store.subscribe("q", "g", Subscription())
    await store.subscribe("q", "done", Subscription("new"))
    found = await store.overview()
    assert found.cursors_with_lag == 2
    assert found.lag_seconds == Spread(average=25.0, median=25.0, minimum=20.0, maximum=30.0)
    assert found.lag_messages == Spread(average=4.0, median=4.0, minimum=2.0, maximum=6.0)
    await push_n(store, "q", 1, partition="c")
    clock.advance(0.5)
    odd = await store.overview()
    assert (odd.cursors_with_lag, odd.lag_messages.median) == (4, 1.5)
    assert (odd.lag_seconds.minimum, odd.lag_seconds.maximum) == (0.5, 30.5)


async def test_lag_in_the_overview_skips_what_was_removed(store: Store) -> None:
    receipts = await push_n(store, "q", 4)
    await store.subscribe("q", "g", Subscription())
    await store.remove_message(receipts[1].partition_id, receipts[1].message_id)
    found = await store.overview()
    assert (found.messages, found.pending, found.lag_messages.maximum) == (3, 3, 3.0)


# --- Messages over queues


async def places(store: Store, where: MessageFilter, *, limit: int = 100) -> list[tuple[str, str, int]]:
    found = [view.message for page in await pages(store, where, limit=limit) for view in page]
    return [(message.queue, message.partition, message.seq) for message in found]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_messages_of_a_namespace_go_by_partition_id_and_seq(store: Store, limit: int) -> None:
    await shop(store)
    await push_n(store, "shop.orders", 1, partition="a", start=3)
    assert await places(store, MessageFilter(namespace="shop"), limit=limit) == [
        *[("shop.orders", "a", seq) for seq in (1, 2, 3)],
        *[("shop.orders", "b", seq) for seq in (1, 2, 3)],
        ("shop.mail.out", "Default", 1),
    ]


async def test_messages_of_a_task_and_of_both(store: Store) -> None:
    await shop(store)
    assert {queue for queue, _, _ in await places(store, MessageFilter(task="orders"))} == {
        "shop.orders",
        "bank.orders",
    }
    assert {queue for queue, _, _ in await places(store, MessageFilter(task=""))} == {"plain"}
    both = await places(store, MessageFilter(task="orders", namespace="bank"))
    assert both == [("bank.orders", "Default", seq) for seq in (1, 2, 3, 4)]
    assert await places(store, MessageFilter(namespace="no such")) == []


async def test_messages_of_all_queues(store: Store) -> None:
    await shop(store)
    assert len(await places(store, MessageFilter(), limit=5)) == 11


async def test_messages_of_a_queue_only_if_it_has_the_labels(store: Store) -> None:
    await shop(store)
    assert len(await places(store, MessageFilter(queue="bank.orders", namespace="bank"))) == 4
    assert await places(store, MessageFilter(queue="bank.orders", namespace="shop")) == []
    assert await places(store, MessageFilter(queue="bank.orders", task="mail")) == []
    with pytest.raises(QueueNotFound):
        await store.messages(MessageFilter(queue="no such", namespace="shop"))


async def test_messages_over_queues_by_status_and_time(store: Store, clock: SetClock) -> None:
    await shop(store)
    later = clock.advance(10)
    await push_n(store, "shop.late", 1)
    await push_n(store, "bank.orders", 1, start=5)
    popped = await pop(store, "bank.orders", batch=2)
    assert await places(store, MessageFilter(from_at=later)) == [
        ("bank.orders", "Default", 5),
        ("shop.late", "Default", 1),
    ]
    assert len(await places(store, MessageFilter(to_at=later, namespace="shop"))) == 6
    processing = MessageFilter(status="processing")
    assert await places(store, processing) == [("bank.orders", "Default", seq) for seq in (1, 2)]
    await ack(store, lease_id=popped.lease_id)
    assert await places(store, processing) == []
    assert len(await places(store, MessageFilter(status="completed", task="orders"))) == 2
