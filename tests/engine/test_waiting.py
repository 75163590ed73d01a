"""Pops that wait: who wakes them, and that nobody is woken for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from lockstep.config import load
from lockstep.core.endings import AckStatus
from lockstep.core.messages import Batch, NewMessage
from lockstep.core.policy import GroupMode, QueueOptions
from lockstep.core.records import Ack, Popped, PopRequest, Position, Renewal, Subscription
from lockstep.core.schedules import ScheduleFilter
from lockstep.engine.engine import Engine
from lockstep.engine.push_within import notify_pushed, push_within
from lockstep.errors import InvalidRequest
from lockstep.storage.base import Store
from lockstep.storage.postgres.store import PostgresStore
from support.clock import SetClock
from support.gate import Gate
from support.until import until

QUEUE = "orders"
LONG = 60.0
NEVER = {"pop_check_seconds_min": 3600.0, "pop_check_seconds_max": 3600.0}
"""Checks so far apart that only a wake-up can end a wait, or a timer for what is due."""


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
    engine = engine_on(store, **NEVER, pop_precheck=False)  # a check that finds what was just pushed wakes one more
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


async def test_a_poll_whose_group_is_deleted_begins_anew(store: Store) -> None:
    engine = engine_on(store, **NEVER)
    await engine.push([batch("p", b"1")])
    await engine.pop([PopRequest(queue=QUEUE, group="g", auto_ack=True)])
    (poll,) = await waiting(engine, group="g")
    await engine.delete_group("g", queue=QUEUE)
    assert (await poll).payloads() == [b"1"]


# --- What becomes due by itself: checks are hours apart here, so only a timer can end a wait ----------------------


async def test_a_retry_that_becomes_due_ends_a_wait(store: Store, clock: SetClock) -> None:
    engine = engine_on(store, **NEVER)
    await engine.configure(QUEUE, QueueOptions(retry_delay_ms=20))
    await engine.push([batch("p", b"1")])
    (popped,) = await engine.pop([PopRequest(queue=QUEUE)])
    (poll,) = await waiting(engine)
    await engine.nack([Ack(lease_id=popped.lease_id)])
    clock.advance(0.02)
    assert (await poll).payloads() == [b"1"]


@pytest.mark.parametrize("mode", ["ordered", "shared"])
@pytest.mark.parametrize("partition", [None, "p"])
async def test_a_lease_that_ends_ends_a_wait(
    store: Store, clock: SetClock, mode: GroupMode, partition: str | None
) -> None:
    engine = engine_on(store, **NEVER)
    await engine.push([batch("p", b"1")])
    await engine.pop([PopRequest(queue=QUEUE, group="g", mode=mode, lease_seconds=0.02)])
    (poll,) = await waiting(engine, group="g", partition=partition)
    clock.advance(0.02)
    assert (await poll).payloads() == [b"1"]


async def test_a_lease_that_begins_while_a_poll_waits_ends_its_wait(store: Store, clock: SetClock) -> None:
    """It is shorter than the time between two checks, which would miss it."""
    engine = engine_on(store, **NEVER)
    await engine.push([batch("p", b"1")])
    (first,) = await engine.pop([PopRequest(queue=QUEUE)])
    (poll,) = await waiting(engine)
    await until(lambda: engine.counts.waiting.precheck_misses)
    await store.ack([Ack(lease_id=first.lease_id, status="released")])
    (second,) = await engine.pop([PopRequest(queue=QUEUE, lease_seconds=0.02)])
    assert second.payloads() == [b"1"]
    clock.advance(0.02)
    assert (await poll).payloads() == [b"1"]


async def test_what_was_delayed_ends_a_wait(store: Store, clock: SetClock) -> None:
    engine = engine_on(store, **NEVER)
    await engine.configure(QUEUE, QueueOptions(delay_seconds=1))
    (poll,) = await waiting(engine)
    await engine.push([batch("p", b"1")])
    clock.advance(0.99)
    await until(lambda: engine.counts.waiting.precheck_misses)
    clock.advance(0.01)
    assert (await poll).payloads() == [b"1"]


async def test_a_poll_of_a_namespace_ends_when_something_becomes_due(store: Store, clock: SetClock) -> None:
    engine = engine_on(store, **NEVER)
    await engine.configure(QUEUE, namespace="shop", task="mail")
    await engine.push([batch("p", b"1")])
    await engine.pop([PopRequest(queue=QUEUE, lease_seconds=0.02)])
    poll = asyncio.create_task(engine.wait_pop(PopRequest(namespace="shop"), LONG))
    other = asyncio.create_task(engine.wait_pop(PopRequest(namespace="depot", task="mail"), LONG))
    await until(lambda: engine.counts.waiting.precheck_misses)
    clock.advance(0.02)
    assert (await poll).payloads() == [b"1"]
    assert not other.done()
    other.cancel()


async def test_what_becomes_due_together_is_one_question(store: Store, clock: SetClock) -> None:
    gate = Gate(store, "due_in")
    gate.open()
    engine = engine_on(gate, **NEVER)  # type: ignore[arg-type]
    queues = [f"q{number}" for number in range(100)]
    await engine.push([batch("p", b"1", queue=queue) for queue in queues])
    await engine.pop([PopRequest(queue=queue, lease_seconds=1) for queue in queues])
    polls = [asyncio.create_task(engine.wait_pop(PopRequest(queue=queue), LONG)) for queue in queues]
    await until(lambda: engine.counts.waiting.precheck_misses >= len(queues))
    clock.advance(1)
    await asyncio.gather(*polls)
    assert engine.counts.waiting.precheck_hits == len(queues)
    assert gate.calls["due_in"] < len(queues) / 2


async def test_a_lease_that_is_renewed_is_asked_about_no_more_often(store: Store) -> None:
    gate = Gate(store, "due_in")
    gate.open()
    engine = engine_on(gate, **NEVER)  # type: ignore[arg-type]
    await engine.push([batch("p", b"1")])
    (popped,) = await engine.pop([PopRequest(queue=QUEUE)])
    (poll,) = await waiting(engine)
    await until(lambda: engine.counts.waiting.precheck_misses)
    asked = gate.calls["due_in"]
    assert popped.lease_id is not None
    for _ in range(50):
        await engine.renew([Renewal(lease_id=popped.lease_id)])
    assert gate.calls["due_in"] == asked
    poll.cancel()


class Elusive:
    """A store that says that there is something, and never has it: as while another transaction holds it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def due_in(self, awaited: list[Any], *, within: float) -> list[float | None]:  # noqa: ARG002
        self.asked.append(asyncio.get_running_loop().time())
        return [0.0] * len(awaited)


async def test_what_no_pop_can_get_is_asked_for_less_and_less_often(store: Store) -> None:
    elusive = Elusive(store)
    engine = engine_on(elusive, pop_check_seconds_min=10.0, pop_check_seconds_max=10.0)  # type: ignore[arg-type]
    (poll,) = await waiting(engine)
    await until(lambda: len(elusive.asked) == 5)
    waits = [after - before for before, after in zip(elusive.asked, elusive.asked[1:], strict=False)]
    assert all([wait >= 0.018 * 2**number for number, wait in enumerate(waits)])
    poll.cancel()


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
    return store.context.signals._holding_waiter


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


async def test_a_retry_elsewhere_that_becomes_due_ends_a_wait_here(two_engines: tuple[Engine, Engine]) -> None:
    here, elsewhere = two_engines
    await elsewhere.listen()
    await here.configure(QUEUE, QueueOptions(retry_delay_ms=200))
    await elsewhere.push([batch("p", b"1")])
    (popped,) = await elsewhere.pop([PopRequest(queue=QUEUE)])
    (poll,) = await waiting(here)
    await until(lambda: is_said_to_wait(here))
    await elsewhere.nack([Ack(lease_id=popped.lease_id)])
    assert (await poll).payloads() == [b"1"]


async def test_a_lease_elsewhere_that_ends_ends_a_wait_here(two_engines: tuple[Engine, Engine]) -> None:
    here, elsewhere = two_engines
    await elsewhere.listen()
    await elsewhere.push([batch("p", b"1"), batch("q", b"2")])
    (first,) = await elsewhere.pop([PopRequest(queue=QUEUE, partition="p")])
    await elsewhere.pop([PopRequest(queue=QUEUE, partition="q")])
    (poll,) = await waiting(here)
    await until(lambda: is_said_to_wait(here))
    await until(lambda: here.counts.waiting.precheck_misses)
    store = elsewhere._store
    await store.ack([Ack(lease_id=first.lease_id, status="released")])
    (second,) = await elsewhere.pop([PopRequest(queue=QUEUE, lease_seconds=0.2)])
    assert second.payloads() == [b"1"]
    assert (await poll).payloads() == [b"1"]


async def test_who_begins_to_wait_is_known_at_once(two_engines: tuple[Engine, Engine]) -> None:
    here, elsewhere = two_engines
    store = elsewhere._store
    assert isinstance(store, PostgresStore)
    await here.listen()
    await elsewhere.listen()
    await elsewhere.push([batch("p", b"1", b"2")])
    (popped,) = await elsewhere.pop([PopRequest(queue=QUEUE)])
    await elsewhere.ack([Ack(lease_id=popped.lease_id, status="retry")])
    await until(lambda: not store.context.signals._others_wait)
    (poll,) = await waiting(here, partition="none")
    await until(lambda: store.context.signals._others_wait)
    poll.cancel()


def pushed_in_sql(connection: psycopg.Connection[Any], *, notify: bool | None = None) -> None:
    named = "" if notify is None else f", notify => {notify}"
    connection.execute(f"select lockstep.push('{QUEUE}', 'p', '1'{named})".encode())


def pushed_within(connection: psycopg.Connection[Any]) -> None:
    push_within(connection, [NewMessage(queue=QUEUE, partition="p", payload=b"1")])


@pytest.mark.parametrize("push", [pushed_in_sql, pushed_within])
async def test_a_commit_that_pushes_wakes_a_poll(
    two_engines: tuple[Engine, Engine], database_dsn: str, push: Callable[[psycopg.Connection[Any]], None]
) -> None:
    here, _ = two_engines
    (poll,) = await waiting(here)

    def committed() -> None:
        with psycopg.connect(database_dsn) as connection:
            push(connection)
            push(connection)

    await asyncio.to_thread(committed)
    assert (await poll).payloads() == [b"1"]


async def test_a_push_that_does_not_notify_is_told_after_its_commit(
    two_engines: tuple[Engine, Engine], database_dsn: str
) -> None:
    here, _ = two_engines
    (poll,) = await waiting(here)
    woken = here.counts.waiting.woken

    def committed() -> None:
        with psycopg.connect(database_dsn) as connection:
            pushed_in_sql(connection, notify=False)
            pushed = push_within(connection, [NewMessage(queue=QUEUE, payload=b"2")], notify=False)
            connection.commit()
            assert here.counts.waiting.woken == woken
            notify_pushed(connection, pushed)

    await asyncio.to_thread(committed)
    assert (await poll).payloads() == [b"1"]


async def test_a_transaction_notifies_once_however_often_it_pushes(database_dsn: str) -> None:
    with (
        psycopg.connect(database_dsn, autocommit=True) as listening,
        psycopg.connect(database_dsn) as connection,
    ):
        listening.execute("listen lockstep_push")
        for _ in range(5):
            pushed_in_sql(connection)
            pushed_within(connection)
        connection.commit()
        told = [one.payload for one in listening.notifies(timeout=0.5)]
    assert told == [f'["", {{"{QUEUE}" : [1, 0]}}]']


async def test_what_is_scheduled_in_a_transaction_is_promoted_on_time(
    two_engines: tuple[Engine, Engine], database_dsn: str
) -> None:
    here, _ = two_engines
    await here.configure(QUEUE)
    here._promotion.interval_seconds = 3600.0
    (poll,) = await waiting(here)
    await until(lambda: here._promotion._last.next_at is None and here._promotion._passes._task)

    def committed() -> None:
        with psycopg.connect(database_dsn) as connection:
            push_within(connection, [NewMessage(queue=QUEUE, payload=b"1", delay_seconds=0.3)])

    await asyncio.to_thread(committed)
    assert (await poll).payloads() == [b"1"]
    assert (await here.schedules(ScheduleFilter())).items == []


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
    assert store.context.names.get(QUEUE) is not None
    await elsewhere.configure(QUEUE, QueueOptions(compression="none"))
    await until(lambda: store.context.names.get(QUEUE) is None)
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
