"""Looking at messages: pages, statuses, single messages and traces."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lockstep.core.records import (
    DeadLetterFilter,
    GroupProgress,
    MessageFilter,
    MessageStatus,
    MessageView,
    page_cursor,
)
from lockstep.errors import InvalidRequest, MessageNotFound, PartitionNotFound, QueueNotFound
from lockstep.storage.base import Store
from support.builders import (
    SMALL_SLICES,
    ack,
    ack_of,
    batch,
    configure,
    listed,
    numbers,
    pages,
    pop,
    pop_all,
    push_n,
    push_tagged,
)
from support.clock import START, SetClock

TRACE_A = "0190a1b2-c3d4-7e5f-8a6b-00000000000a"
TRACE_B = "0190a1b2-c3d4-7e5f-8a6b-00000000000b"


def places(views: list[MessageView]) -> list[tuple[str, int]]:
    return [(view.message.partition, view.message.seq) for view in views]


async def statuses(store: Store, queue: str = "q") -> list[MessageStatus]:
    return [view.status for view in await listed(store, queue)]


# --- Pages


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_listing_a_queue_goes_by_partition_id_and_seq(store: Store, limit: int) -> None:
    await push_n(store, "q", 2, partition="z")
    await store.push([batch("q", 3, partition="a"), batch("other", 2)])
    await push_n(store, "q", 2, partition="z", start=3)
    found = await listed(store, "q", limit=limit)
    assert places(found) == [("z", 1), ("z", 2), ("z", 3), ("z", 4), ("a", 1), ("a", 2), ("a", 3)]
    assert numbers(view.message for view in found) == [1, 2, 3, 4, 1, 2, 3]


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_listing_one_partition(store: Store, limit: int) -> None:
    await store.push([batch("q", 3, partition="a"), batch("q", 5, partition="b"), batch("q", 1, partition="c")])
    found = await listed(store, "q", partition="b", limit=limit)
    assert places(found) == [("b", seq) for seq in range(1, 6)]


async def test_page_fills_up_to_its_limit(store: Store) -> None:
    await store.push([batch("q", 2, partition=name) for name in "abc"])
    found = await pages(store, MessageFilter(queue="q"), limit=4)
    assert [len(page) for page in found if page] == [4, 2]


async def test_listing_goes_on_where_it_was_though_more_is_pushed(store: Store) -> None:
    await push_n(store, "q", 3)
    page = await store.messages(MessageFilter(queue="q"), limit=2)
    assert page.next_cursor is not None
    await push_n(store, "q", 2)
    rest = await store.messages(MessageFilter(queue="q"), cursor=page.next_cursor, limit=10)
    assert places(rest.items) == [("Default", 3), ("Default", 4), ("Default", 5)]


async def test_listed_message_is_the_popped_one(store: Store) -> None:
    await push_n(store, "q", 1, transaction_ids=["t"], trace_ids=[TRACE_A], kinds=["k"], headers=[b'{"a":"b"}'])
    [popped] = (await pop(store, "q")).messages()
    [view] = await listed(store, "q")
    assert view.message.attempt == 0
    assert popped.attempt == 1
    for name in ("id", "queue", "partition", "partition_id", "seq", "created_at", "payload"):
        assert getattr(view.message, name) == getattr(popped, name)
    for name in ("transaction_id", "trace_id", "kind", "reference", "encoding", "headers", "producer_sub"):
        assert getattr(view.message, name) == getattr(popped, name)


# --- How far a page looks


LOOKED_INTO_MAX = SMALL_SLICES.page_looked_into_max


async def walk(
    store: Store, where: MessageFilter, *, newest_first: bool = False, limit: int = 100
) -> tuple[list[tuple[str, int]], list[int]]:
    """What all pages of a list have, and how many messages each of them looked at."""
    found: list[MessageView] = []
    looked: list[int] = []
    cursor: str | None = None
    while True:
        page = await store.messages(where, newest_first=newest_first, cursor=cursor, limit=limit)
        found += page.items
        looked.append(page.looked_into)
        cursor = page.next_cursor
        if cursor is None:
            return places(found), looked


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("partition", [None, "p"])
@pytest.mark.parametrize("size", [1, 30, 130])
async def test_page_looks_at_so_many_messages_and_no_more(
    store: Store, newest_first: bool, partition: str | None, size: int
) -> None:
    """However they were pushed; what is found is what there is."""
    for start in range(0, 130, size):
        await push_n(store, "q", min(size, 130 - start), partition="p", start=start + 1)
    where = MessageFilter(queue="q", partition=partition, status="completed")
    found, looked = await walk(store, where, newest_first=newest_first)
    assert (found, max(looked)) == ([], LOOKED_INTO_MAX)
    assert 130 <= sum(looked) <= 130 + len(looked)  # a page may begin at the end of a push
    await ack(store, lease_id=(await pop(store, "q", batch=71)).lease_id)
    for limit in (1, 7, 100):
        found, looked = await walk(store, where, newest_first=newest_first, limit=limit)
        seqs = [seq for _, seq in found]
        assert sorted(seqs, reverse=newest_first) == seqs
        assert sorted(seqs) == list(range(1, 72))
        assert max(looked) <= LOOKED_INTO_MAX


@pytest.mark.parametrize("newest_first", [False, True])
async def test_page_looks_at_no_more_when_nothing_is_of_the_period(
    store: Store, clock: SetClock, newest_first: bool
) -> None:
    for number in range(2 * LOOKED_INTO_MAX):
        await push_n(store, "q", start=number + 1)
    clock.advance(60)
    late = MessageFilter(queue="q", from_at=clock.now)
    if not newest_first:
        page = await store.messages(late)
        assert (page.items, page.looked_into) == ([], LOOKED_INTO_MAX)
        assert page.next_cursor is not None
    await push_n(store, "q")
    found, _ = await walk(store, late, newest_first=newest_first)
    assert found == [("Default", 2 * LOOKED_INTO_MAX + 1)]


@pytest.mark.parametrize("queue", ["q", None])
async def test_page_looks_at_no_more_partitions_without_messages(store: Store, queue: str | None) -> None:
    names = [f"p{number}" for number in range(2 * LOOKED_INTO_MAX)]
    await store.push([batch("q", partition=name) for name in names])
    await store.clear("q")
    await push_n(store, "q", partition="last")
    page = await store.messages(MessageFilter(queue=queue))
    assert (page.items, page.looked_into) == ([], LOOKED_INTO_MAX)
    found, looked = await walk(store, MessageFilter(queue=queue))
    assert found == [("last", 1)]
    assert len(looked) <= 4


# --- Newest first


async def newest(store: Store, *, limit: int = 100, **where: Any) -> list[tuple[str, int]]:
    """All pages of a list that begins with the newest message."""
    found: list[MessageView] = []
    cursor: str | None = None
    while True:
        page = await store.messages(MessageFilter(**where), newest_first=True, cursor=cursor, limit=limit)
        assert len(page.items) <= limit
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return places(found)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
async def test_newest_message_comes_first(store: Store, limit: int) -> None:
    await push_n(store, "q", 2, partition="z")
    await store.push([batch("q", 3, partition="a"), batch("other", 2)])
    await push_n(store, "q", 2, partition="z", start=3)
    expected = [("z", 4), ("z", 3), ("a", 3), ("a", 2), ("a", 1), ("z", 2), ("z", 1)]
    assert await newest(store, limit=limit, queue="q") == expected
    assert await newest(store, limit=limit, queue="q", partition="z") == [("z", seq) for seq in (4, 3, 2, 1)]


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_newest_message_of_a_wide_push_comes_first(store: Store, limit: int) -> None:
    await store.push([batch("q", 2, partition=name) for name in ("b", "a", "c")])
    oldest_first = places(await listed(store, "q"))
    found = await newest(store, limit=limit, queue="q")
    assert sorted(found) == sorted(oldest_first)
    assert [seq for name, seq in found if name == "b"] == [2, 1]


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_newest_first_goes_over_all_queues_of_a_namespace(store: Store, limit: int) -> None:
    for queue in ("n.a", "m.a", "n.b"):
        await push_n(store, queue, partition=queue)
    assert await newest(store, limit=limit) == [("n.b", 1), ("m.a", 1), ("n.a", 1)]
    assert await newest(store, limit=limit, namespace="n") == [("n.b", 1), ("n.a", 1)]
    assert await newest(store, limit=limit, namespace="n", task="a") == [("n.a", 1)]
    assert await newest(store, limit=limit, queue="n.a", task="b") == []


@pytest.mark.parametrize("partition", [None, "Default"])
async def test_newest_first_keeps_to_the_filter(store: Store, clock: SetClock, partition: str | None) -> None:
    for number in range(4):
        await push_n(store, "q", 2, start=2 * number)
        clock.advance(60)
    await ack(store, lease_id=(await pop(store, "q", batch=2)).lease_id)
    where: dict[str, Any] = {"queue": "q", "partition": partition}
    for limit in (1, 3, 100):
        assert await newest(store, limit=limit, status="completed", **where) == [("Default", 2), ("Default", 1)]
        period = {"from_at": START + timedelta(seconds=60), "to_at": START + timedelta(seconds=180)}
        assert await newest(store, limit=limit, **where, **period) == [("Default", seq) for seq in (6, 5, 4, 3)]


async def test_newest_first_goes_on_where_it_was_though_more_is_pushed(store: Store) -> None:
    await push_n(store, "q", 3)
    page = await store.messages(MessageFilter(queue="q"), newest_first=True, limit=2)
    await push_n(store, "q", 2)
    rest = await store.messages(MessageFilter(queue="q"), newest_first=True, cursor=page.next_cursor, limit=10)
    assert places(rest.items) == [("Default", 1)]


async def test_newest_first_passes_what_was_removed(store: Store) -> None:
    await push_n(store, "q", 4)
    await store.clear("q")
    await push_n(store, "q", 2)
    assert await newest(store, queue="q") == [("Default", 6), ("Default", 5)]


async def test_cursor_of_the_other_order_is_refused(store: Store) -> None:
    await push_n(store, "q", 3)
    for newest_first in (False, True):
        page = await store.messages(MessageFilter(queue="q"), newest_first=newest_first, limit=1)
        with pytest.raises(InvalidRequest, match="cursor"):
            await store.messages(MessageFilter(queue="q"), newest_first=not newest_first, cursor=page.next_cursor)


async def test_listing_an_empty_queue(store: Store) -> None:
    await configure(store, "q")
    assert await listed(store, "q") == []


async def test_listing_what_is_not_there(store: Store) -> None:
    with pytest.raises(QueueNotFound):
        await store.messages(MessageFilter(queue="q"))
    await configure(store, "q")
    with pytest.raises(PartitionNotFound):
        await store.messages(MessageFilter(queue="q", partition="p"))


@pytest.mark.parametrize(
    "cursor", ["garbage", "", "1", "-1.-1", "日本", "a" * 1000, "9" * 40 + "." + "9" * 40], ids=ascii
)
async def test_cursor_that_is_none_is_refused(store: Store, cursor: str) -> None:
    await push_n(store, "q")
    with pytest.raises(InvalidRequest):
        await store.messages(MessageFilter(queue="q"), cursor=cursor)


# --- Filters


@pytest.mark.parametrize(
    ("from_seconds", "to_seconds", "expected"),
    [
        (None, None, [1, 2, 3, 4, 5, 6]),
        (10, None, [3, 4, 5, 6]),
        (10.000_001, None, [5, 6]),
        (None, 10, [1, 2]),
        (None, 10.000_001, [1, 2, 3, 4]),
        (10, 20, [3, 4]),
        (11, 12, []),
        (20, 10, []),
    ],
)
@pytest.mark.parametrize("limit", [1, 100])
async def test_filter_by_time(
    store: Store,
    clock: SetClock,
    from_seconds: float | None,
    to_seconds: float | None,
    expected: list[int],
    limit: int,
) -> None:
    for _ in range(3):
        await push_n(store, "q", 2)
        clock.advance(10)
    times = [None if s is None else START + timedelta(seconds=s) for s in (from_seconds, to_seconds)]
    found = await listed(store, "q", from_at=times[0], to_at=times[1], limit=limit)
    assert [view.message.seq for view in found] == expected


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("completed", [("a", 1), ("b", 1)]),
        ("processing", [("a", 3), ("a", 4)]),
        ("pending", [("a", 5), ("b", 3)]),
        ("dead_letter", [("a", 2), ("b", 2)]),
    ],
)
async def test_filter_by_status(store: Store, status: MessageStatus, expected: list[object], limit: int) -> None:
    await store.push([batch("q", 5, partition="a"), batch("q", 3, partition="b")])
    for name in "ab":
        popped = await pop(store, "q", partition=name, batch=2)
        first, second = popped.messages()
        await store.ack([ack_of(first), ack_of(second, "dlq")])
    await pop(store, "q", partition="a", batch=2)
    found = await listed(store, "q", status=status, limit=limit)
    assert places(found) == expected
    assert {view.status for view in found} == {status}


# --- Statuses


async def test_status_without_any_group_is_pending(store: Store) -> None:
    await push_n(store, "q", 2)
    assert await statuses(store) == ["pending", "pending"]
    assert [view.groups for view in await listed(store, "q")] == [[], []]


async def test_least_finished_group_counts(store: Store) -> None:
    await push_n(store, "q", 3)
    await pop(store, "q", group="g", batch=3, auto_ack=True)
    assert await statuses(store) == ["completed"] * 3
    await pop(store, "q", group="h", batch=2)
    assert await statuses(store) == ["processing", "processing", "pending"]


async def test_message_under_expired_lease_is_pending(store: Store, clock: SetClock) -> None:
    await push_n(store, "q")
    await pop(store, "q", lease_seconds=10)
    clock.advance(10)
    assert await statuses(store) == ["pending"]


async def test_status_of_dead_letter_ends_with_purge(store: Store) -> None:
    await push_n(store, "q")
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id, status="dlq")
    assert await statuses(store) == ["dead_letter"]
    await store.purge(DeadLetterFilter())
    assert await statuses(store) == ["completed"]


async def test_view_tells_how_far_each_group_is(store: Store) -> None:
    receipts = await push_n(store, "q", 3)
    await pop(store, "q", group="done", batch=3, auto_ack=True)
    popped = await pop(store, "q", group="busy", batch=2)
    await pop(store, "q", group="slow", auto_ack=True)
    view = await store.message(receipts[1].message_id)
    assert sorted(view.groups, key=lambda progress: progress.group) == [
        GroupProgress(group="busy", consumed=False, lease_expires_at=popped.expires_at),
        GroupProgress(group="done", consumed=True, lease_expires_at=None),
        GroupProgress(group="slow", consumed=False, lease_expires_at=None),
    ]
    last = await store.message(receipts[2].message_id)
    [busy] = [progress for progress in last.groups if progress.group == "busy"]
    assert busy == GroupProgress(group="busy", consumed=False, lease_expires_at=None)


# --- One message


async def test_message_by_its_id(store: Store) -> None:
    receipts = await store.push([batch("q", 3, partition="a"), batch("r", 2)])
    for receipt in receipts:
        view = await store.message(receipt.message_id)
        assert (view.message.id, view.message.queue, view.message.seq) == (
            receipt.message_id,
            receipt.queue,
            receipt.seq,
        )
        assert view.status == "pending"


async def test_message_by_transaction_id_within_its_partition(store: Store) -> None:
    tagged = await push_tagged(store, "q", "order-1", "0190a1b2-c3d4-7e5f-8a6b-000000000001", None)
    await push_tagged(store, "r", "order-1")
    for receipt in tagged:
        for identity in (receipt.transaction_id, receipt.message_id):
            view = await store.message(identity, partition_id=receipt.partition_id)
            assert view.message.id == receipt.message_id


async def test_same_transaction_id_in_two_partitions(store: Store) -> None:
    [a] = await push_tagged(store, "q", "t", partition="a")
    [b] = await push_tagged(store, "q", "t", partition="b")
    assert (await store.message("t", partition_id=b.partition_id)).message.id == b.message_id
    assert (await store.message("t", partition_id=a.partition_id)).message.id == a.message_id


async def test_message_that_is_not_there(store: Store) -> None:
    a, b = await store.push([batch("q", 1, partition="a"), batch("q", 1, partition="b")])
    ghost = a.message_id[:-4] + "ffff"
    with pytest.raises(MessageNotFound):
        await store.message(ghost)
    for identity, partition_id in [
        ("garbage", a.partition_id),
        (ghost, a.partition_id),
        (b.message_id, a.partition_id),
        (a.message_id, a.partition_id + 1000),
    ]:
        with pytest.raises(MessageNotFound):
            await store.message(identity, partition_id=partition_id)


async def test_cleared_message_is_not_found(store: Store) -> None:
    tagged, plain = await push_tagged(store, "q", "t", None)
    await store.clear("q")
    for receipt in (tagged, plain):
        with pytest.raises(MessageNotFound):
            await store.message(receipt.message_id)
        with pytest.raises(MessageNotFound):
            await store.message(receipt.transaction_id, partition_id=receipt.partition_id)


# --- Traces


async def test_trace_follows_a_message_over_queues_in_time_order(store: Store, clock: SetClock) -> None:
    await push_n(store, "c", 1, start=1, trace_ids=[TRACE_A])
    clock.advance(1)
    await push_n(store, "a", 3, start=10, trace_ids=[TRACE_B, TRACE_A, None])
    clock.advance(1)
    await push_n(store, "b", 1, start=20, partition="p", trace_ids=[TRACE_A])
    found = await store.trace(TRACE_A)
    assert [(m.queue, m.seq, m.trace_id) for m in found] == [
        ("c", 1, TRACE_A),
        ("a", 2, TRACE_A),
        ("b", 1, TRACE_A),
    ]
    assert numbers(found) == [1, 11, 20]
    assert [(m.queue, m.seq) for m in await store.trace(TRACE_B)] == [("a", 1)]


async def test_messages_of_a_trace_at_the_same_time_come_by_id(store: Store) -> None:
    receipts = await push_n(store, "q", 5, trace_ids=[TRACE_A] * 5)
    assert [m.id for m in await store.trace(TRACE_A)] == sorted(r.message_id for r in receipts)


async def test_trace_has_a_limit(store: Store, clock: SetClock) -> None:
    for number in range(4):
        await push_n(store, "q", 1, start=number, trace_ids=[TRACE_A])
        clock.advance(1)
    assert numbers(await store.trace(TRACE_A, limit=2)) == [0, 1]


async def test_unknown_trace_is_empty(store: Store) -> None:
    assert await store.trace(TRACE_A) == []


async def test_trace_stays_after_consumption_and_goes_with_clear(store: Store) -> None:
    await push_n(store, "q", 1, trace_ids=[TRACE_A])
    await pop_all(store, "q")
    assert len(await store.trace(TRACE_A)) == 1
    await store.clear("q")
    assert await store.trace(TRACE_A) == []


async def test_duplicate_adds_nothing_to_a_trace(store: Store) -> None:
    for _ in range(2):
        await push_n(store, "q", 1, transaction_ids=["t"], trace_ids=[TRACE_A])
    assert len(await store.trace(TRACE_A)) == 1


@pytest.mark.parametrize("where", [MessageFilter(queue="q"), MessageFilter(namespace="q")], ids=["queue", "namespace"])
async def test_page_begins_after_a_seq_of_any_size(store: Store, where: MessageFilter) -> None:
    await push_n(store, "q", 1)
    [partition] = await store.partitions("q")
    page = await store.messages(where, cursor=page_cursor(partition.id, 2**62 - 1))
    assert (page.items, page.next_cursor) == ([], None)
