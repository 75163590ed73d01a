"""Trace events: what is told about a message is found by it and by name, and goes with it."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.core.messages import Batch, Receipt
from lockstep.core.traces import NewTraceEvent, TraceEvent, TraceName
from lockstep.errors import MessageNotFound
from lockstep.storage.base import Store
from support.builders import pop, push_n, push_tagged
from support.clock import START, SetClock


def event(receipt: Receipt, *names: str, **fields: Any) -> NewTraceEvent:
    given: dict[str, Any] = {"transaction_id": receipt.transaction_id, "data": b'{"step":1}', **fields}
    return NewTraceEvent(partition_id=receipt.partition_id, names=names, **given)


async def told(store: Store, receipt: Receipt) -> list[bytes]:
    return [one.data for one in await store.traces_of_message(receipt.partition_id, receipt.transaction_id)]


# --- Recording


async def test_event_is_found_as_it_was_told(store: Store, clock: SetClock) -> None:
    [receipt] = await push_tagged(store, "q", "order-1", partition="p")
    clock.advance(5)
    data = '{"b": 1,  "a": [null, "é\\u0000", 1e300]}'.encode()
    fields = {"event_type": "error", "group": "g", "worker": "host-1"}
    event_id = await store.record_trace(event(receipt, "checkout", "billing", data=data, **fields))
    assert await store.traces_of_message(receipt.partition_id, "order-1") == [
        TraceEvent(
            id=event_id,
            queue="q",
            partition="p",
            partition_id=receipt.partition_id,
            seq=1,
            transaction_id="order-1",
            data=data,
            event_type="error",
            group="g",
            worker="host-1",
            names=("checkout", "billing"),
            created_at=clock.now,
        )
    ]


async def test_event_by_message_id_and_by_transaction_id_are_of_the_same_message(store: Store) -> None:
    [receipt] = await push_tagged(store, "q", "order-1")
    await store.record_trace(event(receipt, data=b"1"))
    await store.record_trace(event(receipt, data=b"2", transaction_id=receipt.message_id))
    for identity in ("order-1", receipt.message_id):
        found = await store.traces_of_message(receipt.partition_id, identity)
        assert [one.data for one in found] == [b"1", b"2"]


async def test_events_come_in_the_order_in_which_they_were_told(store: Store) -> None:
    first, second = await push_n(store, "q", 2)
    for number in range(4):
        await store.record_trace(event(first if number % 2 else second, data=b"%d" % number))
    assert await told(store, first) == [b"1", b"3"]
    found = await store.traces_of_message(second.partition_id, second.transaction_id, limit=1)
    assert [one.data for one in found] == [b"0"]


async def test_event_of_an_unknown_message_is_refused(store: Store) -> None:
    a, b = await push_tagged(store, "q", "t", None)
    for wrong in (
        event(a, transaction_id="no such"),
        event(b, transaction_id=b.message_id[:-4] + "ffff"),
        NewTraceEvent(partition_id=a.partition_id + 1000, transaction_id="t", data=b"1"),
    ):
        with pytest.raises(MessageNotFound):
            await store.record_trace(wrong)
        assert await store.traces_of_message(wrong.partition_id, wrong.transaction_id) == []
    assert (await store.trace_names()).total == 0


# --- By name


async def test_events_by_name_come_newest_first_with_their_messages(store: Store, clock: SetClock) -> None:
    [a] = await push_n(store, "q", start=10)
    [b] = await push_n(store, "r", partition="p", start=20)
    for number, receipt in enumerate([a, b, a]):
        await store.record_trace(event(receipt, "checkout", data=b"%d" % number))
        clock.advance(1)
    await store.record_trace(event(a, "other"))
    page = await store.traces_by_name("checkout")
    assert page.total == 3
    assert [(one.event.data, one.event.queue, one.event.partition) for one in page.items] == [
        (b"2", "q", "Default"),
        (b"1", "r", "p"),
        (b"0", "q", "Default"),
    ]
    assert [one.message.json()["n"] for one in page.items if one.message is not None] == [10, 20, 10]
    second = await store.traces_by_name("checkout", limit=1, offset=1)
    assert ([one.event.data for one in second.items], second.total) == ([b"1"], 3)
    assert (await store.traces_by_name("check")).total == 0


async def test_names_with_their_counts_come_by_when_they_were_seen_last(store: Store, clock: SetClock) -> None:
    a, b = await push_n(store, "q", 2)
    for receipt, names in [(a, ["x", "y"]), (a, ["x"]), (b, ["x"])]:
        await store.record_trace(event(receipt, *names))
    clock.advance(1)
    for name in ("é", "z"):
        await store.record_trace(event(b, name))
    page = await store.trace_names()
    assert page.items == [
        TraceName(name="z", traces=1, messages=1, last_seen_at=clock.now),
        TraceName(name="é", traces=1, messages=1, last_seen_at=clock.now),
        TraceName(name="x", traces=3, messages=2, last_seen_at=START),
        TraceName(name="y", traces=1, messages=1, last_seen_at=START),
    ]
    assert page.total == 4
    middle = await store.trace_names(limit=2, offset=1)
    assert ([one.name for one in middle.items], middle.total) == (["é", "x"], 4)


# --- Their end


async def test_events_go_with_a_cleared_queue(store: Store) -> None:
    [a] = await push_tagged(store, "q", "t")
    [b] = await push_tagged(store, "other", "t")
    for receipt in (a, b):
        await store.record_trace(event(receipt, "n"))
    await store.clear("q")
    await push_tagged(store, "q", "t")
    assert await told(store, a) == []
    assert [one.event.queue for one in (await store.traces_by_name("n")).items] == ["other"]


async def test_events_go_with_a_cleared_partition_and_with_what_is_not_leased(store: Store) -> None:
    first, second, third = await push_n(store, "q", 3)
    [elsewhere] = await push_n(store, "q", partition="p")
    for receipt in (first, second, third, elsewhere):
        await store.record_trace(event(receipt, "n"))
    await pop(store, "q", partition="Default", auto_ack=True)
    await pop(store, "q", partition="Default")
    await store.clear("q", partition="Default", scope="unleased")
    assert [bool(await told(store, receipt)) for receipt in (first, second, third)] == [False, True, False]
    await store.clear("q", partition="p")
    assert await told(store, elsewhere) == []
    assert (await store.trace_names()).items[0].traces == 1


async def test_events_go_with_their_queue(store: Store) -> None:
    [receipt] = await push_n(store, "q")
    await store.record_trace(event(receipt, "n"))
    await store.delete_queue("q")
    assert await told(store, receipt) == []
    assert (await store.trace_names()).items == []
    assert (await store.traces_by_name("n")).items == []


async def test_events_stay_after_consumption(store: Store) -> None:
    [receipt] = await push_n(store, "q")
    await store.record_trace(event(receipt, data=b"1"))
    await pop(store, "q", auto_ack=True)
    await store.record_trace(event(receipt, data=b"2"))
    assert await told(store, receipt) == [b"1", b"2"]


async def test_names_of_some_queues(store: Store) -> None:
    for queue, name in (("a", "x"), ("b", "y"), ("b", "x")):
        first = (await store.push([Batch.of(queue, [b"1"])]))[0]
        event = NewTraceEvent(
            partition_id=first.partition_id, transaction_id=first.transaction_id, data=b"1", names=(name,)
        )
        await store.record_trace(event)
    page = await store.trace_names(queues=["b"])
    assert (sorted((one.name, one.traces) for one in page.items), page.total) == ([("x", 1), ("y", 1)], 2)
    assert (await store.trace_names(queues=[])).total == 0
    assert [one.traces for one in (await store.trace_names()).items if one.name == "x"] == [2]
