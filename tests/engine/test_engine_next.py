"""Leases that are continued: joined with others, waiting for more, and whatever becomes of their callers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lockstep.config import load
from lockstep.core.messages import Batch
from lockstep.core.records import Ack, Continued, NextRequest, Popped, PopRequest
from lockstep.engine.engine import Engine
from lockstep.engine.load import Decision
from lockstep.errors import InvalidRequest, Overloaded
from lockstep.storage.base import Store
from support.clock import SetClock
from support.gate import Gate
from support.until import until

QUEUE = "orders"
LONG = 60.0
NEVER = {"pop_check_seconds_min": 3600.0, "pop_check_seconds_max": 3600.0}
NO_LEASE = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"


def engine_on(store: Any, **settings: Any) -> Engine:
    """One call at a time, however slow the machine is."""
    return Engine(store, load({"next_calls_max": 1, "call_patience_seconds": 60, **NEVER, **settings}, environ={}))


async def push(engine: Engine, *partitions: str, count: int = 3) -> None:
    await engine.push(
        [Batch.of(QUEUE, [b"%d" % n for n in range(1, count + 1)], partition=name) for name in partitions]
    )


async def pop(engine: Engine, **request: Any) -> Popped:
    [popped] = await engine.pop([PopRequest(queue=QUEUE, **request)])
    return popped


def after(popped: Popped, **request: Any) -> NextRequest:
    return NextRequest(
        lease_id=popped.lease_id or "", pop=PopRequest(queue=QUEUE, **{"group": popped.group, **request})
    )


async def test_next_goes_on(store: Store) -> None:
    engine = engine_on(store)
    await push(engine, "p")
    [continued] = await engine.next([after(await pop(engine), batch=5)])
    assert (continued.acked.messages, continued.popped.payloads()) == (1, [b"2", b"3"])


async def test_requests_that_come_together_are_one_call(store: Store) -> None:
    await push(engine_on(store), *"abcdef")
    gate = Gate(store, "next")
    engine = engine_on(gate)
    held = [await pop(engine) for _ in range(6)]
    first = asyncio.create_task(engine.next([after(held[0])]))
    await gate.arrived.wait()
    others = [asyncio.create_task(engine.next([after(one)])) for one in held[1:]]
    await until(lambda: engine.counts.calls["next"].requests == 6)
    gate.open()
    answers = [one for answer in await asyncio.gather(first, *others) for one in answer]
    assert gate.calls["next"] == 2
    assert [one.acked.index for one in answers] == [0] * 6
    assert len({one.popped.lease_id for one in answers}) == 6
    for before, one in zip(held, answers, strict=True):
        assert (one.popped.partition_ids, one.popped.payloads()) == (before.partition_ids, [b"2"])


async def test_one_lease_is_never_twice_in_a_call(store: Store) -> None:
    await push(engine_on(store), "a", "b")
    gate = Gate(store, "next")
    engine = engine_on(gate)
    first, second = await pop(engine), await pop(engine)
    waiting = [asyncio.create_task(engine.next([after(first)]))]
    await gate.arrived.wait()
    waiting += [asyncio.create_task(engine.next([after(second)])) for _ in range(2)]
    await until(lambda: engine.counts.calls["next"].requests == 3)
    gate.open()
    answers = [one for answer in await asyncio.gather(*waiting) for one in answer]
    assert gate.calls["next"] == 3
    assert [one.acked.error for one in answers] == [None, None, "lease_lost"]


async def test_caller_that_went_has_completed_its_lease_and_leased_nothing(store: Store) -> None:
    await push(engine_on(store), "p")
    gate = Gate(store, "next")
    engine = engine_on(gate)
    gone = asyncio.create_task(engine.next([after(await pop(engine))]))
    await gate.arrived.wait()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    gate.open()
    await engine._batching.close()
    assert await store.leases() == []
    again = await pop(engine)
    assert (again.payloads(), again.runs[0].delivery.attempt) == ([b"2"], 1)


async def test_request_that_waits_for_its_call_is_carried_out_without_its_caller(store: Store) -> None:
    await push(engine_on(store), "a", "b")
    gate = Gate(store, "next")
    engine = engine_on(gate)
    first, second = await pop(engine), await pop(engine)
    staying = asyncio.create_task(engine.next([after(first)]))
    await gate.arrived.wait()
    gone = asyncio.create_task(engine.next([after(second)]))
    await until(lambda: engine.counts.calls["next"].requests == 2)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    gate.open()
    await staying
    await engine._batching.close()
    lags = {lag.partition: lag.acked for lag in await store.lag(QUEUE)}
    assert (lags["a"], lags["b"]) == (1, 1)
    assert len(await store.leases()) == 1


# --- Waiting


async def waiting_for_next(engine: Engine, popped: Popped, **request: Any) -> asyncio.Task[Continued]:
    """A consumer that has completed its lease and lies still."""
    await engine.listen()
    asked = engine.counts.calls["next"].requests
    poll = asyncio.create_task(engine.wait_next(after(popped, **request), LONG))
    await until(lambda: engine.counts.calls["next"].requests > asked)
    await engine._batching.close()
    for _ in range(3):
        await asyncio.sleep(0)
    return poll


async def test_wait_next_completes_at_once_and_waits_for_more(store: Store) -> None:
    engine = engine_on(store)
    await push(engine, "p", count=1)
    poll = await waiting_for_next(engine, await pop(engine))
    assert [lag.lag for lag in await store.lag(QUEUE)] == [0]
    assert not poll.done()
    await push(engine, "p", count=1)
    continued = await poll
    assert (continued.acked.success, continued.popped.payloads()) == (True, [b"1"])
    assert engine.counts.calls["pop"].requests == 2, "the pop that it began with, and the one that was woken"


async def test_wait_next_without_messages_ends_empty(store: Store) -> None:
    engine = engine_on(store)
    await push(engine, "p", count=1)
    continued = await engine.wait_next(after(await pop(engine)), 0.01)
    assert (continued.acked.success, continued.popped.runs) == (True, [])


async def test_wait_next_of_a_lost_lease_does_not_wait(store: Store) -> None:
    engine = engine_on(store)
    await push(engine, "p")
    lost = NextRequest(lease_id=NO_LEASE, pop=PopRequest(queue=QUEUE))
    async with asyncio.timeout(30):
        continued = await engine.wait_next(lost, LONG)
    assert (continued.acked.error, continued.popped.runs) == ("lease_lost", [])
    assert engine.counts.waiting.polls == 0


async def test_cancelled_wait_leaves_nothing_behind(store: Store) -> None:
    engine = engine_on(store)
    await push(engine, "p", count=1)
    poll = await waiting_for_next(engine, await pop(engine))
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    assert engine.counts.waiting.polls == 0
    await push(engine, "p", count=1)
    assert len(await pop(engine)) == 1


async def test_busy_consumer_gives_way_to_one_that_waits(store: Store, clock: SetClock) -> None:
    """One partition, which has more than anybody can do: both get some of it."""
    engine = engine_on(store, next_hold_seconds=1)
    await push(engine, "p", count=20)
    busy = await pop(engine)
    other = asyncio.create_task(engine.wait_pop(PopRequest(queue=QUEUE), LONG))
    await until(lambda: engine.counts.calls["pop"].requests == 2)
    await engine._batching.close()
    [continued] = await engine.next([after(busy)])
    assert continued.popped.payloads() == [b"2"]
    clock.advance(1)
    [continued] = await engine.next([after(continued.popped)])
    assert (continued.acked.success, continued.popped.runs) == (True, [])
    clock.advance(0.001)  # before the one that was woken looks
    async with asyncio.timeout(30):
        assert (await other).payloads() == [b"3"]


async def test_consumer_that_nobody_waits_beside_goes_on(store: Store, clock: SetClock) -> None:
    engine = engine_on(store, next_hold_seconds=1)
    await push(engine, "p")
    popped = await pop(engine)
    clock.advance(1)
    assert (await engine.wait_next(after(popped), LONG)).popped.payloads() == [b"2"]


async def test_partition_that_is_given_back_wakes_who_waits(store: Store) -> None:
    engine = engine_on(store)
    await push(engine, "a", "b", count=1)
    held = await pop(engine, partitions=2, batch=2)
    await push(engine, "a", "b", count=1)
    other = asyncio.create_task(engine.wait_pop(PopRequest(queue=QUEUE), LONG))
    await until(lambda: engine.counts.calls["pop"].requests == 2)
    await engine._batching.close()
    assert not other.done()
    [continued] = await engine.next([after(held, partition="a")])
    assert [run.partition for run in continued.popped.runs] == ["a"]
    async with asyncio.timeout(30):
        assert [run.partition for run in (await other).runs] == ["b"]


# --- Busy servers


async def test_busy_server_refuses_and_completes_nothing(store: Store) -> None:
    engine = engine_on(store)
    await push(engine, "p")
    popped = await pop(engine)
    engine._load.pop = Decision.REJECT
    with pytest.raises(Overloaded):
        await engine.next([after(popped)])
    with pytest.raises(Overloaded):
        await engine.wait_next(after(popped), LONG)
    assert [outcome.messages for outcome in await engine.ack([Ack(lease_id=popped.lease_id)])] == [1]


async def test_paused_pops_complete_and_lease_nothing(store: Store) -> None:
    engine = engine_on(store)
    await engine.start_buffering()
    await push(engine, "p")
    popped = await pop(engine)
    await engine.set_maintenance_mode(pop=True)
    [continued] = await engine.next([after(popped)])
    assert (continued.acked.messages, continued.popped.runs) == (1, [])
    again = await _popped_again(engine)
    assert not (await engine.wait_next(after(again), LONG)).popped
    assert (await store.lag(QUEUE))[0].acked == 2
    await engine._spooling.stop()


async def _popped_again(engine: Engine) -> Popped:
    await engine.set_maintenance_mode(pop=False)
    popped = await pop(engine)
    await engine.set_maintenance_mode(pop=True)
    return popped


# --- Bad input


@pytest.mark.parametrize(
    "request_",
    [
        NextRequest(lease_id="garbage", pop=PopRequest(queue=QUEUE)),
        NextRequest(lease_id="", pop=PopRequest(queue=QUEUE)),
        NextRequest(lease_id=NO_LEASE, pop=PopRequest(queue=QUEUE, auto_ack=True)),
        NextRequest(lease_id=NO_LEASE, pop=PopRequest(queue=QUEUE, batch=0)),
        NextRequest(lease_id=NO_LEASE, pop=PopRequest()),
        NextRequest(lease_id=NO_LEASE, pop=PopRequest(queue=QUEUE), give_way="yes"),  # type: ignore[arg-type]
        PopRequest(queue=QUEUE),
    ],
    ids=["lease", "no-lease", "auto-ack", "batch", "no-queue", "give-way", "kind"],
)
async def test_bad_requests_are_refused(guarded: Engine, request_: Any) -> None:
    with pytest.raises(InvalidRequest):
        await guarded.next([request_])
    with pytest.raises(InvalidRequest):
        await guarded.wait_next(request_, 1)
