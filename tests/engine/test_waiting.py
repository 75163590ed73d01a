"""Pops that wait: who wakes them, and that nobody is woken for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lockstep.config import load
from lockstep.core.messages import Batch
from lockstep.core.policy import QueueOptions
from lockstep.core.records import Ack, AckStatus, Popped, PopRequest, Position, Subscription
from lockstep.engine.engine import Engine
from lockstep.errors import InvalidRequest
from lockstep.storage.base import Store
from lockstep.storage.postgres.store import PostgresStore
from support.clock import SetClock
from support.gate import Gate
from support.until import until

QUEUE = "orders"
LONG = 60.0
NEVER = {"pop_check_seconds_min": 3600.0, "pop_check_seconds_max": 3600.0}
"""Checks so far apart that only a wake-up can end a wait."""


def engine_on(store: Store, **settings: Any) -> Engine:
    return Engine(store, load(settings, environ={}))


def batch(partition: str, *payloads: bytes, queue: str = QUEUE) -> Batch:
    return Batch.of(queue, payloads, partition=partition)


async def waiting(engine: Engine, count: int = 1, **request: Any) -> list[asyncio.Task[Popped]]:
    """Polls that have looked once and lie still."""
    await engine.listen()
    asked = engine.counts.calls["pop"].requests
    wanted = PopRequest(queue=QUEUE, **request)
    polls = [asyncio.create_task(engine.wait_pop(wanted, LONG)) for _ in range(count)]
    await until(lambda: engine.counts.calls["pop"].requests >= asked + count)
    await engine._batching.close()
    for _ in range(3):
        await asyncio.sleep(0)
    return polls


async def test_a_wait_without_messages_ends_empty(store: Store) -> None:
    popped = await engine_on(store).wait_pop(PopRequest(queue=QUEUE), 0.01)
    assert not popped.runs
    assert popped.lease_id is None


async def test_new_group_gets_what_creates_its_queue(store: Store) -> None:
    engine = engine_on(store, **NEVER)
    [poll] = await waiting(engine, group="g", subscription=Subscription("new"))
    await engine.push([batch("p", b"1")])
    assert (await poll).payloads() == [b"1"]


async def test_group_from_a_time_to_come_does_not_get_what_creates_its_queue(store: Store) -> None:
    engine = engine_on(store, **NEVER)
    later = Subscription("from", datetime.now(UTC) + timedelta(days=1))
    [poll] = await waiting(engine, group="g", subscription=later)
    await engine.push([batch("p", b"1")])
    await until(lambda: engine.counts.calls["pop"].requests == 2)
    assert not poll.done()
    poll.cancel()


async def test_new_group_gets_what_creates_its_partition(store: Store) -> None:
    engine = engine_on(store, **NEVER)
    await engine.push([batch("p", b"1")])
    [poll] = await waiting(engine, group="g", partition="late", subscription=Subscription("new"))
    await engine.push([batch("late", b"2"), batch("p", b"3")])
    assert (await poll).payloads() == [b"2"]
    assert (await engine.pop([PopRequest(queue=QUEUE, group="g")]))[0].payloads() == [b"3"]


async def test_what_is_there_needs_no_wait(store: Store) -> None:
    engine = engine_on(store, **NEVER)
    await engine.push([batch("p", b"1")])
    assert (await engine.wait_pop(PopRequest(queue=QUEUE), LONG)).payloads() == [b"1"]


async def test_a_push_wakes_as_many_as_it_has_partitions(store: Store) -> None:
    engine = engine_on(store, **NEVER)
    polls = await waiting(engine, 5)
    await engine.push([batch("a", b"1", b"2"), batch("b", b"3")])
    done, still = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 2:
        more, still = await asyncio.wait(still, return_when=asyncio.FIRST_COMPLETED)
        done |= more
    assert sorted(poll.result().payloads()[0] for poll in done) == [b"1", b"3"]
    assert len(still) == 3
    assert engine.counts.waiting.woken == 2
    await engine.stop_waiting()
    assert all([not poll.result().runs for poll in (await asyncio.wait(still))[0]])


async def test_a_push_wakes_although_nobody_waits_for_its_receipt(store: Store) -> None:
    gate = Gate(store, "push")
    engine = engine_on(gate, **NEVER, push_calls_max=1)  # type: ignore[arg-type]
    (poll,) = await waiting(engine)
    first = asyncio.create_task(engine.push([batch("p", b"0", queue="other")]))
    await gate.arrived.wait()
    gone = asyncio.create_task(engine.push([batch("p", b"1")]))
    await asyncio.sleep(0)
    gate.open()
    await first  # with its end the other one has begun
    gone.cancel()
    assert (await poll).payloads() == [b"1"]


async def test_every_group_is_woken(store: Store) -> None:
    engine = engine_on(store, **NEVER)
    polls = [(await waiting(engine, group=group))[0] for group in ("g1", "g2")]
    await engine.push([batch("a", b"1")])
    assert [popped.payloads() for popped in await asyncio.gather(*polls)] == [[b"1"], [b"1"]]


async def test_a_named_partition_is_woken_by_its_own_pushes_only(store: Store) -> None:
    engine = engine_on(store, **NEVER)
    (poll,) = await waiting(engine, partition="mine")
    await engine.push([batch("other", b"1")])
    assert engine.counts.waiting.woken == 0
    await engine.push([batch("mine", b"2")])
    assert (await poll).payloads() == [b"2"]


async def test_a_namespace_is_woken_by_a_push_to_one_of_its_queues(store: Store) -> None:
    engine = engine_on(store, **NEVER)
    poll = asyncio.create_task(engine.wait_pop(PopRequest(namespace="shop"), LONG))
    await until(lambda: engine.counts.waiting.polls)
    await engine.push([batch("p", b"1", queue="shop.orders")])
    assert (await poll).payloads() == [b"1"]


async def test_what_was_leased_for_somebody_who_went_wakes_the_next(store: Store) -> None:
    await store.push([batch("p", b"1")])
    gate = Gate(store, "pop")
    engine = engine_on(gate, **NEVER, pop_calls_max=1)  # type: ignore[arg-type]
    polls = [asyncio.create_task(engine.wait_pop(PopRequest(queue=QUEUE), LONG)) for _ in range(2)]
    await gate.arrived.wait()
    polls[0].cancel()
    await asyncio.wait(polls[:1])
    gate.open()
    assert (await polls[1]).payloads() == [b"1"]


async def test_a_released_partition_wakes_the_next(store: Store) -> None:
    engine = engine_on(store, **NEVER)
    await engine.push([batch("p", b"1", b"2")])
    first = (await engine.pop([PopRequest(queue=QUEUE)]))[0]
    (poll,) = await waiting(engine)
    await engine.ack([Ack(lease_id=first.lease_id)])
    assert (await poll).payloads() == [b"2"]


async def test_a_seek_wakes(store: Store) -> None:
    engine = engine_on(store, **NEVER)
    await engine.push([batch("p", b"1")])
    await engine.pop([PopRequest(queue=QUEUE, group="g", auto_ack=True)])
    (poll,) = await waiting(engine, group="g")
    await engine.seek(QUEUE, "g", Position("start"))
    assert (await poll).payloads() == [b"1"]


@pytest.mark.parametrize("precheck", [True, False])
async def test_what_becomes_due_by_itself_is_found_by_a_check(store: Store, clock: SetClock, precheck: bool) -> None:
    engine = engine_on(store, pop_precheck=precheck, pop_check_seconds_min=0.005, pop_check_seconds_max=0.01)
    await engine.configure(QUEUE, QueueOptions(lease_seconds=5))
    await engine.push([batch("p", b"1")])
    await engine.pop([PopRequest(queue=QUEUE)])
    (poll,) = await waiting(engine)
    clock.advance(seconds=6)
    assert (await poll).payloads() == [b"1"]
    assert (engine.counts.waiting.precheck_hits > 0) == precheck


async def test_polls_of_one_queue_are_one_question(store: Store) -> None:
    gate = Gate(store, "due_in")
    engine = engine_on(gate, pop_check_seconds_min=0.005, pop_check_seconds_max=0.01)  # type: ignore[arg-type]
    await engine.push([batch("p", b"1")])
    await engine.pop([PopRequest(queue=QUEUE)])
    polls = await waiting(engine, 50)
    await gate.arrived.wait()
    gate.open()
    await until(lambda: engine.counts.waiting.precheck_misses)
    assert engine.counts.waiting.precheck_misses <= gate.calls["due_in"]
    assert engine.counts.calls["pop"].requests == 51  # none was tried a second time
    await engine.stop_waiting()
    await asyncio.gather(*polls)


async def test_what_a_check_finds_is_shared_by_all_who_wait(store: Store) -> None:
    """Pushed behind the engine's back, to more partitions than a check wakes polls."""
    engine = engine_on(store, pop_check_seconds_min=0.005, pop_check_seconds_max=0.01)
    polls = await waiting(engine, 4)
    await store.push([batch(f"p{number}", b"%d" % number) for number in range(4)])
    popped = await asyncio.gather(*polls)
    assert sorted(one.payloads()[0] for one in popped) == [b"0", b"1", b"2", b"3"]


async def test_who_goes_away_leaves_nothing_behind(store: Store) -> None:
    engine = engine_on(store, **NEVER)
    (poll,) = await waiting(engine)
    poll.cancel()
    await asyncio.wait((poll,))
    assert engine.counts.waiting.polls == 0
    await engine.push([batch("p", b"1")])
    assert await store.leases() == []


async def test_after_a_stop_nobody_waits(store: Store) -> None:
    engine = engine_on(store, **NEVER)
    polls = await waiting(engine, 3)
    await engine.stop_waiting()
    assert all([not poll.result().runs for poll in (await asyncio.wait(polls))[0]])
    assert not (await engine.wait_pop(PopRequest(queue=QUEUE), LONG)).runs


@pytest.mark.parametrize("seconds", [-1, 301, True, "5"])
async def test_a_bad_wait_is_refused(store: Store, seconds: Any) -> None:
    with pytest.raises(InvalidRequest, match="wait"):
        await engine_on(store).wait_pop(PopRequest(queue=QUEUE), seconds)


# --- Two processes on one database ----------------------------------------------------------------------------


@pytest.fixture
async def two_engines(database_dsn: str) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two stores on one database, as in two processes."""
    config = load(NEVER, environ={})
    async with (
        Engine(PostgresStore(database_dsn, config=config), config) as one,
        Engine(PostgresStore(database_dsn, config=config), config) as other,
    ):
        yield one, other


async def test_a_push_elsewhere_wakes_a_poll_here(two_engines: tuple[Engine, Engine]) -> None:
    here, elsewhere = two_engines
    for number in range(3):
        (poll,) = await waiting(here)
        await elsewhere.push([batch("p", b"%d" % number)])
        popped = await poll
        assert popped.payloads() == [b"%d" % number]
        await here.ack([Ack(lease_id=popped.lease_id)])


async def test_nobody_is_told_while_nobody_listens(database_dsn: str) -> None:
    asked: list[str] = []
    config = load(environ={})
    store = PostgresStore(database_dsn, config=config, on_query=lambda name, _seconds, _error: asked.append(name))
    async with Engine(store, config) as engine:
        await engine.push([batch("p", b"1")])
        await until(lambda: "listeners" in asked)
        await engine.push([batch("p", b"2")])
        await asyncio.sleep(0.02)
    assert "notify" not in asked


def is_said_to_wait(engine: Engine) -> bool:
    """Whether other processes can know that polls wait here."""
    store = engine._store
    assert isinstance(store, PostgresStore)
    return store._signals._holding_waiter


@pytest.mark.parametrize("end", ["completed", "failed", "retry"])
async def test_an_ack_elsewhere_wakes_a_poll_here(two_engines: tuple[Engine, Engine], end: AckStatus) -> None:
    here, elsewhere = two_engines
    await here.configure(QUEUE, QueueOptions(retry_delay_ms=0))
    await here.push([batch("p", b"1", b"2")])
    (popped,) = await here.pop([PopRequest(queue=QUEUE)])
    (poll,) = await waiting(here)
    await until(lambda: is_said_to_wait(here))
    await elsewhere.ack([Ack(lease_id=popped.lease_id, status=end)])
    assert (await poll).payloads() == [b"2" if end == "completed" else b"1"]


async def test_an_ack_is_not_told_while_nobody_waits_elsewhere(database_dsn: str) -> None:
    asked: list[str] = []
    config = load(environ={})
    store = PostgresStore(database_dsn, config=config, on_query=lambda name, _seconds, _error: asked.append(name))
    async with Engine(store, config) as engine, Engine(PostgresStore(database_dsn, config=config), config) as other:
        await other.push([batch("p", b"1", b"2")])
        await other.listen()
        for _ in range(2):
            (popped,) = await engine.pop([PopRequest(queue=QUEUE)])
            await engine.ack([Ack(lease_id=popped.lease_id)])
            await until(lambda: "listeners" in asked)
        await asyncio.sleep(0.02)
    assert asked.count("listeners") == 1
    assert "notify" not in asked


async def test_a_changed_queue_is_heard_elsewhere(two_engines: tuple[Engine, Engine]) -> None:
    here, elsewhere = two_engines
    await here.listen()
    store = here._store
    assert isinstance(store, PostgresStore)
    await here.push([batch("p", b"x" * 2000)])
    assert store.names.get(QUEUE) is not None
    await elsewhere.configure(QUEUE, QueueOptions(compression="none"))
    await until(lambda: store.names.get(QUEUE) is None)
    await here.push([batch("p", b"y" * 2000)])
    rows = await store.database.fetch("codecs", "select codec from lockstep.segment order by id")
    assert [row[0] for row in rows] == [1, 0]


async def test_a_lost_connection_is_made_again(two_engines: tuple[Engine, Engine]) -> None:
    here, elsewhere = two_engines
    (poll,) = await waiting(here)
    store = elsewhere._store
    assert isinstance(store, PostgresStore)
    ended = await store.database.fetch(
        "end", "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'lockstep-listen'"
    )
    assert ended
    await elsewhere.push([batch("p", b"1")])  # told while nobody listens
    assert (await poll).payloads() == [b"1"]
