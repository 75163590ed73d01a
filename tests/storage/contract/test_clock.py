"""The clock is set back, or the database moves to a machine whose clock is behind: what is done then counts from then.

What waits for a time keeps it until the duty `clock` has moved it (docs/concepts/delivery.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from lockstep.core.applying import ApplyLimits
from lockstep.core.messages import Batch, Columns
from lockstep.core.operations import NewOperation
from lockstep.core.policy import GroupMode, QueueOptions
from lockstep.core.records import Ack, AckStatus, Popped, Position, Subscription
from lockstep.storage.base import Store
from support.builders import configure, numbers, pop, push_n
from support.clock import SetClock

HOUR = 3600
MODES: list[GroupMode] = ["ordered", "shared"]


async def _leased(store: Store, clock: SetClock, mode: GroupMode = "ordered", *, rest: bool = True) -> Popped:
    """A lease on 1 and 2, with 3 and 4 behind them if there is a `rest`; then the clock is set back."""
    await store.configure("q", QueueOptions(retry_delay_ms=0, lease_seconds=60))
    await store.subscribe("q", "g", Subscription(mode="all"), mode=mode)
    await push_n(store, "q", 2)
    if rest:
        await push_n(store, "q", 2, start=3)
    popped = await pop(store, "q", group="g", batch=2)
    assert numbers(popped) == [1, 2]
    clock.advance(1)
    if not rest:
        assert not await pop(store, "q", group="g")
    clock.set_back(HOUR)
    return popped


def _ack(popped: Popped, seq: int | None = None, status: AckStatus = "completed") -> Ack:
    partition_id = None if seq is None else popped.runs[0].partition_id
    return Ack(lease_id=popped.lease_id, partition_id=partition_id, seq=seq, status=status)


Act = Callable[[Store, Popped], Awaitable[object]]
ACTS: dict[str, tuple[Act, list[int]]] = {
    "ack of the lease": (lambda store, popped: store.ack([_ack(popped)]), [3, 4]),
    "ack of its messages": (lambda store, popped: store.ack([_ack(popped, 1), _ack(popped, 2)]), [3, 4]),
    "failed": (lambda store, popped: store.ack([_ack(popped, status="failed")]), [1, 2, 3, 4]),
    "released": (lambda store, popped: store.ack([_ack(popped, status="released")]), [1, 2, 3, 4]),
    "dlq": (lambda store, popped: store.ack([_ack(popped, 1, status="dlq"), _ack(popped, 2)]), [3, 4]),
    "seek to the start": (lambda store, _: store.seek("q", "g", Position("start")), [1, 2, 3, 4]),
    "seek to a message": (lambda store, _: store.seek("q", "g", Position("seq", seq=2)), [2, 3, 4]),
}


@pytest.mark.parametrize("act", ACTS)
async def test_what_an_act_makes_deliverable_is_so_at_once(store: Store, clock: SetClock, act: str) -> None:
    call, expected = ACTS[act]
    await call(store, await _leased(store, clock))
    assert numbers(await pop(store, "q", group="g", batch=9)) == expected


@pytest.mark.parametrize("act", ["failed", "released", "seek to the start"])
async def test_shared_group_delivers_at_once_what_an_act_makes_deliverable(
    store: Store, clock: SetClock, act: str
) -> None:
    call, _ = ACTS[act]
    await call(store, await _leased(store, clock, "shared", rest=False))
    assert numbers(await pop(store, "q", group="g", batch=9)) == [1, 2]


async def test_auto_ack_leaves_the_rest_deliverable(store: Store, clock: SetClock) -> None:
    await store.configure("q", QueueOptions())
    await store.subscribe("q", "g", Subscription(mode="all"))
    await push_n(store, "q", 1)
    clock.advance(HOUR)
    await push_n(store, "q", 1, start=2)
    await push_n(store, "q", 1, start=3)
    clock.set_back(HOUR)
    found = [numbers(await pop(store, "q", group="g", auto_ack=True)) for _ in range(4)]
    assert found == [[1], [2], [3], []]


@pytest.mark.parametrize("mode", MODES)
async def test_push_to_a_drained_partition_is_delivered_at_once(store: Store, clock: SetClock, mode: GroupMode) -> None:
    popped = await _leased(store, clock, mode, rest=False)
    await store.ack([_ack(popped)])
    await push_n(store, "q", 1, start=3)
    assert numbers(await pop(store, "q", group="g", batch=9)) == [3]


async def test_messages_come_in_the_order_of_their_pushes(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 2)
    clock.set_back(HOUR)
    await push_n(store, "q", 2, start=3)
    assert numbers(await pop(store, "q", group="late", batch=9)) == [1, 2, 3, 4]


async def test_queue_with_a_window_waits_for_its_newest_message(store: Store, clock: SetClock) -> None:
    await configure(store, "q", window_seconds=5)
    await push_n(store, "q", 1)
    clock.set_back(HOUR)
    await push_n(store, "q", 1, start=2)
    clock.advance(5)
    assert numbers(await pop(store, "q", group="late", batch=9)) == [1, 2]


async def test_message_of_a_queue_with_a_delay_waits_by_its_own_time(store: Store, clock: SetClock) -> None:
    await configure(store, "q", delay_seconds=5)
    await push_n(store, "q", 1)
    clock.set_back(HOUR)
    clock.advance(5)
    assert not await pop(store, "q", group="late")
    clock.advance(HOUR)
    assert numbers(await pop(store, "q", group="late")) == [1]


async def test_what_was_due_by_the_old_clock_is_due_when_the_new_one_is_there(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 1)
    assert await pop(store, "q", group="g", auto_ack=True)
    await push_n(store, "q", 1, start=2)
    clock.set_back(HOUR)
    await push_n(store, "q", 1, start=3)
    assert not await pop(store, "q", group="g", batch=9)
    clock.advance(HOUR)
    assert numbers(await pop(store, "q", group="g", batch=9)) == [2, 3]


@pytest.mark.parametrize("mode", MODES)
async def test_seek_to_where_the_group_is_delivers_at_once(store: Store, clock: SetClock, mode: GroupMode) -> None:
    await _leased(store, clock, mode)
    assert not await pop(store, "q", group="g", batch=9)
    await store.seek("q", "g", Position("current"))
    found = [*numbers(await pop(store, "q", group="g", batch=2)), *numbers(await pop(store, "q", group="g", batch=9))]
    assert sorted(found) == ([1, 2] if mode == "ordered" else [1, 2, 3, 4])


async def test_lease_keeps_its_deadline(store: Store, clock: SetClock) -> None:
    await _leased(store, clock)
    clock.advance(HOUR + 58)
    assert not await pop(store, "q", group="g", batch=9)
    clock.advance(1)
    assert numbers(await pop(store, "q", group="g", batch=9)) == [1, 2, 3, 4]


# What the duty does


async def _follow(store: Store) -> int:
    moved, place = 0, None
    while True:
        batch = await store.follow_clock(after=place)
        moved, place = moved + batch.waiting, batch.next
        if place is None:
            return moved


async def test_what_was_due_is_due_at_once_when_the_clock_is_followed(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 1, partition="a")
    assert await pop(store, "q", group="g", auto_ack=True)
    await push_n(store, "q", 1, start=2, partition="a")
    await push_n(store, "q", 1, start=3, partition="b")
    assert await _follow(store) == 0
    clock.set_back(HOUR)
    await push_n(store, "q", 1, start=4, partition="a")
    assert not await pop(store, "q", group="g", batch=9)
    assert await _follow(store) == 2
    found = numbers(await pop(store, "q", group="g", batch=9, partitions=2))
    assert sorted(found) == [2, 3, 4]
    assert await _follow(store) == 0


@pytest.mark.parametrize("mode", MODES)
async def test_lease_of_the_old_clock_ends_within_a_lease_time(store: Store, clock: SetClock, mode: GroupMode) -> None:
    await store.follow_clock()
    await _leased(store, clock, mode, rest=False)
    assert await _follow(store) == 1
    clock.advance(59)
    assert not await pop(store, "q", group="g", batch=9)
    clock.advance(1)
    assert numbers(await pop(store, "q", group="g", batch=9)) == [1, 2]


@pytest.mark.parametrize("mode", MODES)
async def test_lease_of_the_new_clock_is_left_alone(store: Store, clock: SetClock, mode: GroupMode) -> None:
    await store.follow_clock()
    await store.configure("q", QueueOptions(lease_seconds=60))
    await store.subscribe("q", "g", Subscription(mode="all"), mode=mode)
    clock.set_back(HOUR)
    await push_n(store, "q", 1)
    assert numbers(await pop(store, "q", group="g")) == [1]
    assert await _follow(store) == 0
    clock.advance(59)
    assert not await pop(store, "q", group="g")


@pytest.mark.parametrize("mode", MODES)
async def test_retry_delay_goes_back_with_the_clock(store: Store, clock: SetClock, mode: GroupMode) -> None:
    await store.configure("q", QueueOptions(retry_delay_ms=30_000))
    await store.subscribe("q", "g", Subscription(mode="all"), mode=mode)
    await push_n(store, "q", 1)
    popped = await pop(store, "q", group="g")
    await store.ack([_ack(popped, status="failed")])
    await store.follow_clock()
    clock.set_back(HOUR)
    assert await _follow(store) == 1
    clock.advance(29)
    assert not await pop(store, "q", group="g")
    clock.advance(1)
    assert numbers(await pop(store, "q", group="g")) == [1]


async def test_stopped_partition_stays_stopped(store: Store, clock: SetClock) -> None:
    await store.configure("q", QueueOptions(retry_limit=0, on_exhausted="stop"))
    await push_n(store, "q", 1)
    popped = await pop(store, "q", group="g")
    await store.ack([_ack(popped, status="failed")])
    await store.follow_clock()
    clock.set_back(HOUR)
    assert await _follow(store) == 0
    assert not await pop(store, "q", group="g")


async def test_delay_still_counts_from_the_message(store: Store, clock: SetClock) -> None:
    await configure(store, "q", delay_seconds=5)
    await push_n(store, "q", 1)
    assert not await pop(store, "q", group="g")
    await store.follow_clock()
    clock.set_back(HOUR)
    await push_n(store, "q", 1, start=2, partition="new")
    await _follow(store)
    clock.advance(5)
    assert numbers(await pop(store, "q", group="g", batch=9, auto_ack=True)) == [2]
    clock.advance(HOUR)
    assert numbers(await pop(store, "q", group="g", batch=9)) == [1]


async def test_operations_are_applied_by_the_new_clock(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 1)
    await store.queue_operations([NewOperation([Batch("q", "p", Columns([b"2"]))])])
    await store.follow_clock()
    clock.set_back(HOUR)
    assert (await store.apply_operations("push", by="x", limits=ApplyLimits())).operations == 0
    assert await _follow(store) >= 1
    assert (await store.apply_operations("push", by="x", limits=ApplyLimits())).operations == 1


async def test_step_of_some_seconds_is_not_followed(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 1)
    assert await pop(store, "q", group="g", auto_ack=True)
    await push_n(store, "q", 1, start=2)
    await store.follow_clock()
    clock.set_back(10)
    assert await _follow(store) == 0
    assert not await pop(store, "q", group="g")
    clock.advance(10)
    assert numbers(await pop(store, "q", group="g")) == [2]
