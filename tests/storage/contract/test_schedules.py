"""Messages that wait for their time: scheduling, promotion, and what an operator does with them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from lockstep.core.messages import Batch, Columns, NewSchedule, PushResult
from lockstep.core.records import Ack
from lockstep.core.schedules import Promoted, Scheduled, ScheduleFilter, ScheduleName
from lockstep.errors import InvalidRequest, PartitionNotFound, QueueFull, QueueNotFound, ScheduleNotFound
from lockstep.storage.base import Store
from support.builders import batch, configure, numbers, payloads, pop, pop_all, push_n, push_tagged, seqs
from support.clock import SetClock

TRACE = "0190a1b2-c3d4-7e5f-8a6b-00000000000a"


def later(
    seconds: float | datetime,
    count: int = 1,
    *,
    queue: str = "q",
    partition: str = "p",
    key: str | None = None,
    start: int = 1,
    **columns: Any,
) -> Batch:
    """Numbered messages for later: after so many seconds, or at a time."""
    schedule = (
        NewSchedule(deliver_at=seconds, key=key)
        if isinstance(seconds, datetime)
        else NewSchedule(delay_seconds=seconds, key=key)
    )
    return Batch(queue, partition, Columns(payloads(count, start=start), **columns), schedule)


async def promote(store: Store, limit: int = 100) -> Promoted:
    return await store.promote(limit=limit)


async def waiting(store: Store, **where: Any) -> list[Scheduled]:
    return (await store.schedules(ScheduleFilter(**where))).items


def statuses(result: PushResult) -> list[str]:
    return [receipt.status for receipt in result]


async def test_scheduled_message_comes_when_it_is_due(store: Store, clock: SetClock) -> None:
    [receipt] = await store.push([later(10)])
    assert (receipt.status, receipt.due_at, receipt.seq) == ("scheduled", clock.ahead(10), 0)
    assert (await promote(store)).messages == 0
    clock.advance(9.999)
    assert (await promote(store)).messages == 0
    assert not await pop(store, "q")
    clock.advance(0.001)
    promoted = await promote(store)
    assert (promoted.messages, promoted.partitions_by_queue) == (1, {"q": {"p"}})
    popped = await pop(store, "q")
    assert (numbers(popped), seqs(popped)) == ([1], [1])
    assert (await promote(store)).messages == 0
    assert await waiting(store) == []


async def test_promotion_says_when_the_next_one_is_due(store: Store, clock: SetClock) -> None:
    assert (await promote(store)).wait_seconds is None
    await store.push([later(30), later(20, start=2)])
    promoted = await promote(store)
    assert (promoted.next_at, promoted.wait_seconds) == (clock.ahead(20), 20)
    clock.advance(25)
    promoted = await promote(store)
    assert (promoted.messages, promoted.next_at, promoted.wait_seconds) == (1, clock.ahead(5), 5)


@pytest.mark.parametrize("seconds", [0, 0.05, 0.099])
async def test_less_than_the_least_is_now(store: Store, seconds: float) -> None:
    result = await store.push([later(seconds)])
    assert statuses(result) == ["queued"]
    assert numbers(await pop(store, "q")) == [1]


async def test_a_tenth_of_a_second_is_later(store: Store) -> None:
    assert statuses(await store.push([later(0.1)])) == ["scheduled"]


async def test_time_in_the_past_is_now(store: Store, clock: SetClock) -> None:
    assert statuses(await store.push([later(clock.ago(3600))])) == ["queued"]


async def test_mixed_push_stores_what_is_for_now_and_keeps_the_rest(store: Store, clock: SetClock) -> None:
    result = await store.push([batch("q", 2, partition="p"), later(10, 2, start=3), batch("r", 1, start=5)])
    assert statuses(result) == ["queued", "queued", "scheduled", "scheduled", "queued"]
    assert [receipt.index for receipt in result] == [0, 1, 2, 3, 4]
    assert numbers(await pop_all(store, "q")) == [1, 2]
    clock.advance(10)
    await promote(store)
    assert numbers(await pop_all(store, "q")) == [3, 4]
    assert numbers(await pop_all(store, "r")) == [5]


async def test_a_refused_push_schedules_nothing(store: Store) -> None:
    await configure(store, "q", max_size=1)
    with pytest.raises(QueueFull):
        await store.push([later(10, queue="r"), batch("q", 2)])
    assert await waiting(store) == []
    with pytest.raises(QueueNotFound):
        await store.queue("r")


async def test_partition_appears_with_the_promotion(store: Store, clock: SetClock) -> None:
    await store.push([later(10, partition="late")])
    assert (await store.queue("q")).messages == 0
    with pytest.raises(PartitionNotFound):
        await store.partition("q", "late")
    clock.advance(10)
    await promote(store)
    assert (await store.partition("q", "late")).last_seq == 1


async def test_due_order_is_seq_order(store: Store, clock: SetClock) -> None:
    await store.push([later(30, start=3), later(10, start=1)])
    await store.push([later(20, start=2), later(30, start=4)])
    clock.advance(60)
    await promote(store)
    popped = await pop(store, "q", batch=10)
    assert (numbers(popped), seqs(popped)) == ([1, 2, 3, 4], [1, 2, 3, 4])


async def test_limit_ends_a_promotion_and_the_next_goes_on_in_order(store: Store, clock: SetClock) -> None:
    await store.push([later(number, start=number) for number in range(1, 8)])
    clock.advance(60)
    promoted = await promote(store, limit=3)
    assert (promoted.messages, promoted.more) == (3, True)
    assert (await promote(store, limit=3)).messages == 3
    assert (await promote(store, limit=3)).messages == 1
    assert numbers(await pop(store, "q", batch=10)) == [1, 2, 3, 4, 5, 6, 7]


async def test_everything_about_a_message_is_kept(store: Store, clock: SetClock) -> None:
    columns = {
        "transaction_ids": ["order-1"],
        "trace_ids": [TRACE],
        "kinds": ["k"],
        "references": ["r"],
        "encodings": ["avro"],
        "headers": [b'{"tenant":"m\xc3\xbcller"}'],
        "producer_subs": ["sub"],
    }
    await store.push([later(10, key="the-key", **columns)])
    [found] = await waiting(store)
    assert (found.queue, found.partition, found.key, found.due_at) == ("q", "p", "the-key", clock.ahead(10))
    clock.advance(10)
    await promote(store)
    [message] = (await pop(store, "q")).messages()
    for one in (found, message):
        assert (one.payload, one.transaction_id, one.trace_id, one.kind) == (b'{"n":1}', "order-1", TRACE, "k")
        assert (one.reference, one.encoding, one.headers, one.producer_sub) == (
            "r",
            "avro",
            {"tenant": "müller"},
            "sub",
        )
    assert message.created_at == clock.now
    assert [one.seq for one in await store.trace(TRACE)] == [1]


async def test_key_waits_once_in_a_queue(store: Store, clock: SetClock) -> None:
    [first] = await store.push([later(10, key="k")])
    [again] = await store.push([later(20, key="k", partition="other")])
    [elsewhere] = await store.push([later(10, key="k", queue="r")])
    assert (again.status, again.schedule_id, again.due_at) == ("duplicate", first.schedule_id, clock.ahead(10))
    assert elsewhere.status == "scheduled"
    clock.advance(10)
    await promote(store)
    assert statuses(await store.push([later(10, key="k")])) == ["scheduled"]


async def test_transaction_id_waits_once_in_a_partition(store: Store) -> None:
    result = await store.push([later(10, 2, transaction_ids=["a", "a"]), later(20, transaction_ids=["a"])])
    assert statuses(result) == ["scheduled", "duplicate", "duplicate"]
    assert len({receipt.schedule_id for receipt in result}) == 1
    assert result.duplicates == 2
    again = await store.push([later(5, transaction_ids=["a"]), later(5, transaction_ids=["a"], partition="other")])
    assert statuses(again) == ["duplicate", "scheduled"]


async def test_transaction_id_that_is_stored_is_dropped_at_promotion(store: Store, clock: SetClock) -> None:
    await store.push([later(10, 2, transaction_ids=["a", "b"])])
    await push_tagged(store, "q", "a", partition="p")
    clock.advance(10)
    await promote(store)
    assert [message.transaction_id for message in await pop_all(store, "q")] == ["a", "b"]
    assert await waiting(store) == []


async def test_full_queue_postpones_and_loses_nothing(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_size=3)
    await push_n(store, "q", 2, partition="p")
    [receipt] = await store.push([later(10, start=3)])
    assert receipt.status == "scheduled"
    await store.push([later(11, start=4), later(12, start=5), later(12, queue="r")])
    clock.advance(20)
    promoted = await promote(store)
    assert promoted.partitions_by_queue == {"q": {"p"}, "r": {"p"}}
    assert len(await waiting(store, queue="q")) == 2
    full = await promote(store)
    assert (full.messages, full.more) == (0, False)
    assert "QueueFull" in full.postponed["q"]
    found = numbers(await pop_all(store, "q"))
    assert (await promote(store)).messages == 2
    assert found + numbers(await pop_all(store, "q")) == [1, 2, 3, 4, 5]


async def test_message_that_does_not_fit_makes_no_partition(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_size=3)
    await push_n(store, "q", 2, partition="p")
    await store.push([later(10, start=3), later(11, start=4, partition="new")])
    clock.advance(20)
    assert (await promote(store)).messages == 1
    assert [one.name for one in await store.partitions("q")] == ["Default", "p"]
    assert not await pop(store, "q", partition="new")
    await pop_all(store, "q")
    assert (await promote(store)).partitions_by_queue == {"q": {"new"}}
    assert numbers(await pop(store, "q", partition="new")) == [4]


async def test_cancel_by_id_and_by_key(store: Store, clock: SetClock) -> None:
    [first, second] = await store.push([later(10, key="k"), later(10, start=2)])
    assert await store.cancel_schedule(ScheduleName(queue="q", key="k"))
    assert not await store.cancel_schedule(ScheduleName(id=first.schedule_id))
    assert not await store.cancel_schedule(ScheduleName(queue="r", key="k"))
    assert await store.cancel_schedule(ScheduleName(id=second.schedule_id))
    clock.advance(10)
    assert (await promote(store)).messages == 0


async def test_cancel_after_the_promotion_says_no(store: Store, clock: SetClock) -> None:
    [receipt] = await store.push([later(10)])
    clock.advance(10)
    await promote(store)
    assert not await store.cancel_schedule(ScheduleName(id=receipt.schedule_id))
    assert numbers(await pop_all(store, "q")) == [1]


async def test_reschedule_moves_to_a_time_or_by_a_delay(store: Store, clock: SetClock) -> None:
    [receipt] = await store.push([later(10, key="k", transaction_ids=["a"])])
    which = ScheduleName(id=receipt.schedule_id)
    moved = await store.reschedule(ScheduleName(queue="q", key="k"), NewSchedule(deliver_at=clock.ahead(100)))
    assert (moved.id, moved.due_at, moved.key) == (receipt.schedule_id, clock.ahead(100), "k")
    clock.advance(50)
    assert (await promote(store)).messages == 0
    moved = await store.reschedule(which, NewSchedule(delay_seconds=5))
    assert moved.due_at == clock.ahead(5)
    assert await store.schedule(which) == moved
    clock.advance(5)
    assert (await promote(store)).messages == 1
    with pytest.raises(ScheduleNotFound):
        await store.reschedule(which, NewSchedule(delay_seconds=5))
    with pytest.raises(ScheduleNotFound):
        await store.schedule(which)


async def test_rescheduling_to_the_same_time_delivers_once(store: Store, clock: SetClock) -> None:
    [receipt] = await store.push([later(10)])
    for _ in range(2):
        await store.reschedule(ScheduleName(id=receipt.schedule_id), NewSchedule(deliver_at=clock.ahead(10)))
    clock.advance(10)
    assert (await promote(store)).messages == 1
    assert numbers(await pop_all(store, "q")) == [1]


async def test_listing_filters_and_pages(store: Store, clock: SetClock) -> None:
    await store.push([later(number, start=number, key=f"a-{number}") for number in range(5, 0, -1)])
    await store.push([later(3, start=6, partition="other"), later(1, start=7, queue="r", key="b")])

    async def found(limit: int = 100, **where: Any) -> list[int]:
        cursor, items = None, []
        while True:
            page = await store.schedules(ScheduleFilter(**where), cursor=cursor, limit=limit)
            items += [one.json()["n"] for one in page.items]
            cursor = page.next_cursor
            if cursor is None:
                return items

    assert await found() == await found(limit=1) == await found(limit=2) == [1, 7, 2, 3, 6, 4, 5]
    assert await found(queue="q", partition="other") == [6]
    assert await found(queue="r") == [7]
    assert await found(key_prefix="a-") == [1, 2, 3, 4, 5]
    assert await found(key_prefix="a_") == []
    assert await found(queue="q", from_at=clock.ahead(2), to_at=clock.ahead(4)) == [2, 3, 6]
    with pytest.raises(QueueNotFound):
        await found(queue="nowhere")
    with pytest.raises(InvalidRequest):
        await store.schedules(ScheduleFilter(), cursor="x.y")


async def test_delete_queue_takes_what_waits_with_it(store: Store, clock: SetClock) -> None:
    await store.push([later(10, 3), later(10, queue="r")])
    await store.delete_queue("q")
    assert [one.queue for one in await waiting(store)] == ["r"]
    clock.advance(10)
    assert (await promote(store)).partitions_by_queue == {"r": {"p"}}


async def test_transaction_schedules_and_rolls_back(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 1)
    popped = await pop(store, "q")
    result = await store.transaction([Ack(lease_id=popped.lease_id)], [later(10, start=2), batch("r", 1, start=3)])
    assert statuses(result.pushed) == ["scheduled", "queued"]
    await configure(store, "small", max_size=1)
    with pytest.raises(QueueFull):
        await store.transaction([], [later(10, start=4), batch("small", 2)])
    clock.advance(10)
    await promote(store)
    assert numbers(await pop_all(store, "q")) == [2]


async def test_a_waiting_group_gets_what_is_promoted(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 1, partition="p")
    assert numbers(await pop_all(store, "q", group="g")) == [1]
    await store.push([later(10, start=2)])
    clock.advance(10)
    await promote(store)
    assert numbers(await pop_all(store, "q", group="g")) == [2]
    assert await store.verify() == []
