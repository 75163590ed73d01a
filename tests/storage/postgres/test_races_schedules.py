"""Promotion against those who want the same at the same time; and across restarts, with encryption, at any size."""

from __future__ import annotations

import asyncio
import json
import random
from base64 import b64encode

import psycopg
import pytest

from lockstep.config import Config
from lockstep.core.crons import NewCron
from lockstep.core.messages import Batch, Columns, NewMessage, NewSchedule, Receipt
from lockstep.core.records import PopRequest
from lockstep.core.schedules import ScheduleFilter, ScheduleName
from lockstep.engine.engine import Engine
from lockstep.engine.push_within import push_within_async
from lockstep.errors import EncryptionUnavailable
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.store import PostgresStore
from support.builders import configure, numbers, payloads, pop_all
from support.clock import SetClock
from support.sessions import Actor, Stage

pytestmark = pytest.mark.set_clock


def later(count: int = 1, *, seconds: float = 10, start: int = 1, queue: str = "q", key: str | None = None) -> Batch:
    return Batch(queue, "p", Columns(payloads(count, start=start)), NewSchedule(delay_seconds=seconds, key=key))


async def schedule(actor: Actor, *batches: Batch) -> list[Receipt]:
    return list(await actor.store.push(batches))


# --- Two promoters


async def test_second_promoter_takes_nothing_while_the_first_is_at_it(stage: Stage, clock: SetClock) -> None:
    """A promotes and holds on; B finds somebody at it, and does not wait; A commits: nothing is left."""
    a, b = await stage.actors(2)
    await schedule(a, later(3))
    clock.advance(10)
    await a.begin()
    assert (await a.store.promote(limit=2)).messages == 2
    assert (await b.store.promote(limit=2)).messages == 0
    await a.commit()
    assert (await b.store.promote(limit=2)).messages == 1
    assert numbers(await pop_all(a.store, "q")) == [1, 2, 3]


async def test_what_a_promoter_took_comes_again_if_it_fails(stage: Stage, clock: SetClock) -> None:
    """A promotes and rolls back; B promotes the same, once."""
    a, b = await stage.actors(2)
    await schedule(a, later(3))
    clock.advance(10)
    await a.begin()
    await a.store.promote(limit=10)
    await a.rollback()
    assert (await b.store.promote(limit=10)).messages == 3
    assert numbers(await pop_all(b.store, "q")) == [1, 2, 3]


async def test_many_promoters_push_everything_once_and_in_order(dsn: str, clock: SetClock) -> None:
    stores = [PostgresStore(dsn, clock=clock) for _ in range(4)]
    for store in stores:
        await store.open()
    for number in range(1, 61):
        await stores[0].push([later(seconds=number, start=number)])
    clock.advance(60)

    async def work(store: PostgresStore) -> int:
        done = 0
        while (await store.schedules(ScheduleFilter())).items:
            done += (await store.promote(limit=3)).messages
        return done

    assert sum(await asyncio.gather(*[work(store) for store in stores])) == 60
    assert numbers(await pop_all(stores[0], "q")) == list(range(1, 61))
    for store in stores:
        await store.close()


async def test_cron_is_pushed_by_one_of_two(stage: Stage, clock: SetClock) -> None:
    """A pushes and holds on; B finds it taken; A commits: for B its time is over."""
    a, b = await stage.actors(2)
    await a.store.set_cron(NewCron(name="c", queue="q", expression="* * * * *", payload=b"{}", catch_up="all"))
    clock.advance(60)
    await a.begin()
    assert (await a.store.promote(limit=10)).messages == 1
    assert (await b.store.promote(limit=10)).messages == 0
    await a.commit()
    assert (await b.store.promote(limit=10)).messages == 0
    assert len(await pop_all(b.store, "q")) == 1


# --- Promotion against an operator


async def test_cancel_that_comes_during_the_promotion_is_too_late(stage: Stage, clock: SetClock) -> None:
    """A promotes and holds on; B cancels and waits; A commits: B is told that nothing waits."""
    a, b = await stage.actors(2)
    [receipt] = await schedule(a, later(key="k"))
    clock.advance(10)
    await a.begin()
    await a.store.promote(limit=10)
    for which in (ScheduleName(id=receipt.schedule_id), ScheduleName(queue="q", key="k")):
        waiting = await stage.blocked(b.store.cancel_schedule(which), b, by=a)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        b = await stage.actor()
    waiting = await stage.blocked(b.store.cancel_schedule(ScheduleName(id=receipt.schedule_id)), b, by=a)
    await a.commit()
    assert await waiting is False
    assert numbers(await pop_all(b.store, "q")) == [1]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_promotion_waits_for_a_cancel_and_overtakes_nothing(stage: Stage, clock: SetClock, ends: str) -> None:
    """B cancels the first and holds on; A promotes and waits; B ends: what is left comes in order."""
    a, b = await stage.actors(2)
    first, *_ = await schedule(a, later(3))
    clock.advance(10)
    await b.begin()
    assert await b.store.cancel_schedule(ScheduleName(id=first.schedule_id))
    waiting = await stage.blocked(a.store.promote(limit=10), a, by=b)
    await getattr(b, ends)()
    assert (await waiting).messages == (2 if ends == "commit" else 3)
    assert numbers(await pop_all(a.store, "q")) == ([2, 3] if ends == "commit" else [1, 2, 3])


async def test_what_is_rescheduled_during_the_promotion_waits_on(stage: Stage, clock: SetClock) -> None:
    """B moves the first and holds on; A promotes and waits; B commits: the first is not due any more."""
    a, b = await stage.actors(2)
    first, _ = await schedule(a, later(2))
    clock.advance(10)
    await b.begin()
    await b.store.reschedule(ScheduleName(id=first.schedule_id), NewSchedule(delay_seconds=60))
    waiting = await stage.blocked(a.store.promote(limit=10), a, by=b)
    await b.commit()
    assert (await waiting).messages == 1
    clock.advance(60)
    await a.store.promote(limit=10)
    assert numbers(await pop_all(a.store, "q")) == [2, 1]


async def test_queue_that_is_deleted_during_the_promotion_takes_everything(stage: Stage, clock: SetClock) -> None:
    """A promotes and holds on; B deletes the queue and waits; A commits: B removes what was promoted, too."""
    a, b = await stage.actors(2)
    await schedule(a, later(3))
    clock.advance(10)
    await a.begin()
    await a.store.promote(limit=2)
    waiting = await stage.blocked(b.store.delete_queue("q"), b, by=a)
    await a.commit()
    assert await waiting
    assert await b.sql("select count(*) from lockstep.scheduled") == 0


async def test_queue_that_is_deleted_while_something_is_scheduled(stage: Stage) -> None:
    """A schedules and holds on; B deletes the queue and waits; A commits: nothing waits for a queue that is gone."""
    a, b = await stage.actors(2)
    await configure(a.store, "q")
    await a.begin()
    await schedule(a, later())
    waiting = await stage.blocked(b.store.delete_queue("q"), b, by=a)
    await a.commit()
    assert await waiting
    assert await b.sql("select count(*) from lockstep.scheduled") == 0


# --- The same key


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_key_that_is_being_scheduled_is_waited_for(stage: Stage, ends: str) -> None:
    """A schedules a key and holds on; B schedules it, too, and waits; A ends: it waits once."""
    a, b = await stage.actors(2)
    await configure(a.store, "q")
    await a.begin()
    await schedule(a, later(key="k"))
    waiting = await stage.blocked(schedule(b, later(key="k", start=2)), b, by=a)
    await getattr(a, ends)()
    [receipt] = await waiting
    assert receipt.status == ("duplicate" if ends == "commit" else "scheduled")
    assert len((await b.store.schedules(ScheduleFilter())).items) == 1


async def test_key_of_what_is_being_promoted_is_free_afterwards(stage: Stage, clock: SetClock) -> None:
    """A promotes a key and holds on; B schedules it again and waits; A commits: it waits again."""
    a, b = await stage.actors(2)
    await schedule(a, later(key="k"))
    clock.advance(10)
    await a.begin()
    await a.store.promote(limit=10)
    waiting = await stage.blocked(schedule(b, later(key="k", start=2)), b, by=a)
    await a.commit()
    [receipt] = await waiting
    assert receipt.status == "scheduled"


# --- Restarts, encryption, size


async def test_schedule_outlives_a_restart(dsn: str) -> None:
    config = Config(promotion_interval_seconds=0.05)
    async with Engine(PostgresStore(dsn, config=config), config) as engine:
        await engine.push([later(seconds=0.3)])
    async with Engine(PostgresStore(dsn, config=config), config) as engine:
        popped = await engine.wait_pop(PopRequest(queue="q"), 30)
    assert numbers(popped) == [1]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_schedule_in_the_callers_own_transaction(dsn: str, ends: str) -> None:
    store = PostgresStore(dsn)
    await store.open()
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        [receipt] = await push_within_async(connection, [NewMessage(queue="q", payload=b"1", delay_seconds=60)])
        assert receipt.status == "scheduled"
        await getattr(connection, ends)()
    found = (await store.schedules(ScheduleFilter())).items
    assert [waiting.id for waiting in found] == ([receipt.schedule_id] if ends == "commit" else [])
    await store.close()


async def test_waiting_messages_of_an_encrypted_queue_are_encrypted(dsn: str, clock: SetClock) -> None:
    config = Config(encryption_key=b64encode(bytes(range(32))).decode())
    store, keyless = PostgresStore(dsn, config=config, clock=clock), PostgresStore(dsn, clock=clock)
    await store.open()
    await configure(store, "q", encryption=True)
    await store.push([later()])
    await store.set_cron(NewCron(name="c", queue="q", expression="* * * * *", payload=b'{"n":2}'))
    with pytest.raises(EncryptionUnavailable):
        await keyless.push([later()])
    with pytest.raises(EncryptionUnavailable):
        await keyless.schedules(ScheduleFilter())
    clock.advance(60)
    promoted = await keyless.promote(limit=10)
    assert (promoted.messages, sorted(promoted.postponed)) == (0, ["cron c", "q"])
    assert (await store.promote(limit=10)).messages == 2
    assert sorted(numbers(await pop_all(store, "q"))) == [1, 2]
    for one in (store, keyless):
        await one.close()


async def test_large_messages_are_promoted_in_parts(dsn: str, clock: SetClock) -> None:
    store = PostgresStore(dsn, clock=clock)
    await store.open()
    # What does not compress, so that it is as large while it waits.
    large = [random.Random(number).randbytes(1000) for number in range(3)]
    columns = Columns(large, encodings=["raw"] * 3)
    await store.push([Batch("q", "p", columns, NewSchedule(delay_seconds=10))])
    clock.advance(10)
    query = "select count(*) from lockstep.queue q, lockstep.take_due(q.id, 10, 1000, $1) where q.name = 'q'"
    assert (await store.database.fetch("take", query, clock.now))[0][0] == 1
    assert (await store.promote(limit=10)).messages == 3
    assert [message.payload for message in await pop_all(store, "q")] == large
    await store.close()


_WAITING = """
insert into lockstep.scheduled (queue_id, partition_name, due_at, created_at, codec, body)
select q.id, 'p', $1::timestamptz + make_interval(secs => n), now(), 1, '\\x00'
from lockstep.queue q, generate_series(1, 50000) n where q.name = 'q'
"""
_EXPLAIN = "explain (analyze, buffers, format json) select * from lockstep.next_due($1, $2)"


async def test_many_waiting_ones_cost_nothing_while_they_wait(stage: Stage, clock: SetClock) -> None:
    """Nor do they when they cannot be promoted; and one of them is found, moved and cancelled without a look at all."""
    a = await stage.actor()
    await configure(a.store, "q")
    await a.sql(_WAITING, clock.ahead(86_400))
    [receipt] = await schedule(a, later(seconds=900_000, key="k"))
    await a.connection.execute("vacuum analyze lockstep.scheduled")
    await a.store.promote(limit=10)  # so that what is read once in a session is read
    for after, now in ((None, clock.now), (clock.ahead(86_400 + 49_999), clock.ahead(100_000))):
        [plan] = json.loads(await a.sql(_EXPLAIN, after, now))
        assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 20
    page = (clock.ahead(880_000), 0, None, None, 10)
    for query, arguments in (
        ("schedule_find", (None, "q", "k")),
        ("schedule_list", page),
        ("schedule_list_of_queue", (*page, 1, None)),
        ("schedule_move", (receipt.schedule_id, None, None, None, 5.0, clock.now)),
        ("schedule_cancel", (None, "q", "k")),
    ):
        explain = f"explain (analyze, buffers, format json) {sql.query(query)}"
        [plan] = json.loads(await a.sql(explain, *arguments))
        assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 40, query
    await a.connection.execute("delete from lockstep.scheduled")
