"""Queues: configure, list, delete."""

from __future__ import annotations

import pytest

from lockstep.core.policy import COUNT_MAX, QueueOptions
from lockstep.core.records import Ack, DeadLetterFilter, Subscription
from lockstep.errors import InvalidOption, QueueNotFound
from lockstep.storage.base import Store
from support.builders import batch, configure, dead_letter_by_dlq, pop, pop_all, push_n, push_tagged, seqs
from support.clock import SetClock

EVERY_OPTION = QueueOptions(
    lease_seconds=7,
    retry_limit=0,
    retry_delay_ms=250,
    retry_backoff=1.5,
    retry_delay_ms_max=9_000,
    on_exhausted="stop",
    max_size=COUNT_MAX,
    ttl_seconds=12,
    priority=-3,
    delay_seconds=4,
    window_seconds=5,
    retention_enabled=True,
    retention_seconds=86_400,
    completed_retention_seconds=3_600,
    max_wait_seconds=60,
    encryption=True,
    compression="none",
    dead_letter_queue=True,
    dlq_after_max_retries=True,
)


async def test_configure_creates_queue_with_default_partition(store: Store, clock: SetClock) -> None:
    made = await store.configure("orders", QueueOptions())
    assert made.name == "orders"
    assert made.options == QueueOptions()
    assert made.created_at == clock.now
    assert (made.partitions, made.messages, made.pending, made.processing, made.dead_letters) == (
        1,
        0,
        0,
        0,
        0,
    )
    assert [partition.name for partition in await store.partitions("orders")] == ["Default"]
    assert await store.queue("orders") == made


async def test_configure_keeps_every_option(store: Store) -> None:
    made = await store.configure("orders", EVERY_OPTION)
    assert made.options == EVERY_OPTION
    assert (await store.queue("orders")).options == EVERY_OPTION


async def test_configure_replaces_whole_configuration(store: Store, clock: SetClock) -> None:
    first = await store.configure("orders", EVERY_OPTION)
    clock.advance(5)
    second = await store.configure("orders", QueueOptions(priority=9))
    assert second.options == QueueOptions(priority=9, encryption=True)
    assert (second.id, second.created_at) == (first.id, first.created_at)
    assert len(await store.queues()) == 1


async def test_only_stop_encryption_switches_it_off(store: Store) -> None:
    await store.configure("orders", QueueOptions(encryption=True, priority=1))
    with pytest.raises(InvalidOption, match="encryption off"):
        await store.update_queue("orders", {"encryption": False, "priority": 2})
    assert (await store.update_queue("orders", {"priority": 3})).options.encryption
    assert (await store.stop_encryption("orders")).options == QueueOptions(priority=3)
    assert (await store.queue("orders")).options == QueueOptions(priority=3)
    with pytest.raises(QueueNotFound):
        await store.stop_encryption("missing")


async def test_configure_keeps_messages_and_cursors(store: Store) -> None:
    await push_n(store, "orders", 3)
    await pop(store, "orders", batch=1, auto_ack=True)
    after = await configure(store, "orders", priority=1)
    assert (after.messages, after.pending) == (3, 2)
    assert seqs(await pop(store, "orders", batch=10)) == [2, 3]


async def test_configure_leaves_deadline_of_held_lease(store: Store, clock: SetClock) -> None:
    await configure(store, "orders", lease_seconds=100)
    await push_n(store, "orders")
    popped = await pop(store, "orders")
    await configure(store, "orders", lease_seconds=5)
    [lease] = await store.leases()
    assert lease.expires_at == popped.expires_at == clock.ahead(100)


async def test_configure_rules_next_pop(store: Store, clock: SetClock) -> None:
    await configure(store, "orders", lease_seconds=100)
    await push_n(store, "orders")
    await configure(store, "orders", lease_seconds=5)
    assert (await pop(store, "orders")).expires_at == clock.ahead(5)


@pytest.mark.parametrize(
    ("name", "namespace", "task"),
    [
        ("orders", "orders", ""),
        ("shop.orders", "shop", "orders"),
        ("shop.orders.eu.1", "shop", "orders"),
        (".orders", "", "orders"),
        ("shop.", "shop", ""),
        ("büro.straße", "büro", "straße"),
    ],
)
@pytest.mark.parametrize("by", ["configure", "push"])
async def test_new_queue_takes_namespace_and_task_from_its_name(
    store: Store, by: str, name: str, namespace: str, task: str
) -> None:
    if by == "configure":
        await configure(store, name)
    else:
        await push_n(store, name)
    made = await store.queue(name)
    assert (made.namespace, made.task) == (namespace, task)


async def test_configure_keeps_namespace_and_task_when_not_given(store: Store) -> None:
    await store.configure("a.b", QueueOptions(), namespace="shop", task="bill")
    kept = await store.configure("a.b", QueueOptions(priority=1))
    assert (kept.namespace, kept.task) == ("shop", "bill")
    changed = await store.configure("a.b", QueueOptions(), namespace="", task="pay")
    assert (changed.namespace, changed.task) == ("", "pay")


async def test_configure_may_give_one_of_namespace_and_task(store: Store) -> None:
    made = await store.configure("a.b", QueueOptions(), task="pay")
    assert (made.namespace, made.task) == ("a", "pay")


async def test_push_creates_queue_with_default_options(store: Store, clock: SetClock) -> None:
    await push_n(store, "orders", 2, partition="p")
    made = await store.queue("orders")
    assert made.options == QueueOptions()
    assert made.created_at == clock.now
    assert (made.messages, made.pending) == (2, 2)


async def test_queue_that_is_not_there(store: Store) -> None:
    with pytest.raises(QueueNotFound):
        await store.queue("orders")


async def test_queue_counts_pending_of_furthest_group(store: Store) -> None:
    await push_n(store, "orders", 5)
    await pop(store, "orders", group="fast", batch=5, auto_ack=True)
    await pop(store, "orders", group="slow", batch=2, auto_ack=True)
    assert (await store.queue("orders")).pending == 3


async def test_queue_counts_messages_under_lease_of_all_groups(store: Store, clock: SetClock) -> None:
    await configure(store, "orders", lease_seconds=30)
    await push_n(store, "orders", 5)
    await pop(store, "orders", group="a", batch=3)
    await pop(store, "orders", group="b", batch=2)
    assert (await store.queue("orders")).processing == 5
    clock.advance(30)
    assert (await store.queue("orders")).processing == 0


async def test_queue_counts_dead_letters(store: Store) -> None:
    await dead_letter_by_dlq(store, "orders", 2)
    assert (await store.queue("orders")).dead_letters == 2


async def test_queues_come_by_name_in_code_point_order(store: Store) -> None:
    names = ["b", "B", "a", "a.b", "a-b", "ä", "Z", "_", "日本", "aa"]
    for name in names:
        await configure(store, name)
    assert [queue.name for queue in await store.queues()] == sorted(names)


async def test_queues_are_paged_by_name(store: Store) -> None:
    names = [f"q{number:02}" for number in range(7)]
    for name in reversed(names):
        await configure(store, name)
    found: list[str] = []
    while page := await store.queues(after=found[-1] if found else None, limit=3):
        assert len(page) <= 3
        found += [queue.name for queue in page]
    assert found == names


async def test_queues_of_namespace_and_task(store: Store) -> None:
    for name in ["shop.orders", "shop.bills", "bank.orders", "shop"]:
        await configure(store, name)

    async def found(**where: str) -> list[str]:
        return [queue.name for queue in await store.queues(**where)]

    assert await found(namespace="shop") == ["shop", "shop.bills", "shop.orders"]
    assert await found(task="orders") == ["bank.orders", "shop.orders"]
    assert await found(namespace="shop", task="orders") == ["shop.orders"]
    assert await found(namespace="nowhere") == []


async def test_queues_tell_the_same_as_queue(store: Store) -> None:
    await push_n(store, "a", 3)
    await pop(store, "a", batch=2)
    await dead_letter_by_dlq(store, "b", 1)
    assert await store.queues() == [await store.queue("a"), await store.queue("b")]


async def test_delete_queue_says_whether_there_was_one(store: Store) -> None:
    await configure(store, "orders")
    assert await store.delete_queue("orders") is True
    assert await store.delete_queue("orders") is False
    assert await store.queues() == []


async def test_deleted_queue_starts_afresh(store: Store) -> None:
    await configure(store, "orders", priority=5)
    await push_tagged(store, "orders", "t1", "t2", "t3")
    await pop(store, "orders", group="g", batch=3, auto_ack=True)
    await store.delete_queue("orders")
    with pytest.raises(QueueNotFound):
        await store.queue("orders")

    [receipt] = await push_tagged(store, "orders", "t1")
    assert (receipt.status, receipt.seq) == ("queued", 1)
    assert (await store.queue("orders")).options == QueueOptions()
    assert await store.groups(queue="orders") == []
    assert seqs(await pop(store, "orders", group="g", batch=10)) == [1]


async def test_deleted_queue_takes_dead_letters_leases_and_traces_with_it(store: Store) -> None:
    trace_id = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
    await dead_letter_by_dlq(store, "orders", 1)
    await push_n(store, "orders", 1, trace_ids=[trace_id])
    await pop(store, "orders")
    await store.delete_queue("orders")
    assert (await store.dead_letters(DeadLetterFilter())).total == 0
    assert await store.leases() == []
    assert await store.trace(trace_id) == []
    assert await store.utilisation() == []


async def test_deleted_queue_forgets_stored_subscription(store: Store) -> None:
    await configure(store, "orders")
    await store.set_subscription("g", Subscription("new"), queue="orders")
    await store.delete_queue("orders")
    await push_n(store, "orders", 2)
    assert seqs(await pop(store, "orders", group="g", batch=10)) == [1, 2]


async def test_lease_does_not_outlive_its_queue(store: Store) -> None:
    await push_n(store, "orders")
    popped = await pop(store, "orders")
    [message] = popped.messages()
    await store.delete_queue("orders")
    await push_n(store, "orders")
    by_lease, by_message = await store.ack(
        [
            Ack(lease_id=popped.lease_id),
            Ack(partition_id=message.partition_id, transaction_id=message.transaction_id),
        ]
    )
    assert (by_lease.success, by_lease.error) == (False, "lease_lost")
    assert (by_message.success, by_message.error) == (False, "unresolvable")


async def test_delete_queue_leaves_other_queues_alone(store: Store) -> None:
    await store.push([batch("a", 3), batch("b", 2)])
    await store.delete_queue("a")
    assert seqs(await pop_all(store, "b")) == [1, 2]
