"""Partitions: appear by their first push, are listed by name, and tell what they hold."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.errors import PartitionNotFound, QueueNotFound
from lockstep.storage.base import Store
from support.builders import ack, batch, configure, dead_letter_by_dlq, pop, push_n
from support.clock import SetClock


async def names_of(store: Store, queue: str) -> list[str]:
    return [partition.name for partition in await store.partitions(queue)]


async def test_push_creates_only_the_partition_it_names(store: Store) -> None:
    await push_n(store, "orders", partition="customer-42")
    assert await names_of(store, "orders") == ["customer-42"]


async def test_configure_gives_an_existing_queue_its_default_partition(store: Store) -> None:
    await push_n(store, "orders", partition="customer-42")
    assert (await configure(store, "orders")).partitions == 2
    assert await names_of(store, "orders") == ["Default", "customer-42"]


async def test_partition_of_unknown_queue(store: Store) -> None:
    with pytest.raises(QueueNotFound):
        await store.partition("orders", "Default")
    with pytest.raises(QueueNotFound):
        await store.partitions("orders")


async def test_partition_that_is_not_there(store: Store) -> None:
    await configure(store, "orders")
    with pytest.raises(PartitionNotFound):
        await store.partition("orders", "customer-42")


async def test_empty_partition(store: Store, clock: SetClock) -> None:
    await configure(store, "orders")
    empty = await store.partition("orders", "Default")
    assert (empty.queue, empty.name, empty.created_at) == ("orders", "Default", clock.now)
    assert (empty.first_seq, empty.last_seq, empty.messages, empty.pending) == (1, 0, 0, 0)
    assert (empty.oldest_at, empty.newest_at) == (None, None)


async def test_partition_tells_what_it_holds(store: Store, clock: SetClock) -> None:
    oldest = clock.now
    await push_n(store, "orders", 3)
    newest = clock.advance(10)
    await push_n(store, "orders", 2)
    clock.advance(10)
    held = await store.partition("orders", "Default")
    assert (held.first_seq, held.last_seq, held.messages, held.pending) == (1, 5, 5, 5)
    assert (held.oldest_at, held.newest_at) == (oldest, newest)
    assert await store.partitions("orders") == [held]


async def test_partition_counts_pending_of_furthest_group_and_processing_of_all(store: Store) -> None:
    await push_n(store, "orders", 6)
    first = await pop(store, "orders", group="a", batch=4)
    await ack(store, lease_id=first.lease_id, seq=1)
    await pop(store, "orders", group="b", batch=2)
    held = await store.partition("orders", "Default")
    assert (held.pending, held.processing) == (6, 5)


async def test_partition_counts_its_own_dead_letters(store: Store) -> None:
    await dead_letter_by_dlq(store, "orders", 2, partition="bad")
    await push_n(store, "orders", 1, partition="good")
    assert (await store.partition("orders", "bad")).dead_letters == 2
    assert (await store.partition("orders", "good")).dead_letters == 0


async def test_partition_id_is_that_of_receipts_and_messages(store: Store) -> None:
    [receipt] = await push_n(store, "orders", partition="p")
    [message] = (await pop(store, "orders")).messages()
    assert receipt.partition_id == message.partition_id == (await store.partition("orders", "p")).id


async def test_same_partition_name_in_two_queues_is_two_partitions(store: Store) -> None:
    a, b = await store.push([batch("a", 1, partition="p"), batch("b", 1, partition="p")])
    assert a.partition_id != b.partition_id
    assert (a.seq, b.seq) == (1, 1)


async def test_partitions_come_by_name_in_code_point_order(store: Store) -> None:
    names = ["b", "B", "a", "10", "9", "ä", "Z", "日本", " "]
    await store.push([batch("orders", 1, partition=name) for name in names])
    assert await names_of(store, "orders") == sorted(names)


async def test_partitions_are_paged_by_name(store: Store) -> None:
    names = [f"p{number:03}" for number in range(25)]
    await store.push([batch("orders", 1, partition=name) for name in reversed(names)])
    found: list[str] = []
    while page := await store.partitions("orders", after=found[-1] if found else None, limit=10):
        assert len(page) <= 10
        found += [partition.name for partition in page]
    assert found == names


async def test_partitions_are_searched_by_the_beginning_of_their_names(store: Store) -> None:
    names = ["a", "ab", "abc", "b", "ab\U0010fffe", "zz"]
    await store.push([batch("q", partition=name) for name in names])

    async def found(**where: Any) -> list[str]:
        return [one.name for one in await store.partitions("q", **where)]

    assert await found(prefix="ab") == ["ab", "abc", "ab\U0010fffe"]
    assert await found(prefix="ab", limit=2) == ["ab", "abc"]
    assert await found(prefix="ab", after="abc") == ["ab\U0010fffe"]
    assert await found(prefix="") == sorted(names)
    assert await found(prefix="c") == []
