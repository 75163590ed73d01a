"""Promotion in the background: in time, without a server, told to who waits, and through failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from lockstep.config import Config
from lockstep.core.crons import NewCron
from lockstep.core.maintenance import DutyClaim
from lockstep.core.messages import Batch, Columns, NewMessage, NewSchedule
from lockstep.core.records import Arrival, PopRequest
from lockstep.core.schedules import Promoted, ScheduleName
from lockstep.engine.arrivals import Arrivals
from lockstep.engine.engine import Engine
from lockstep.engine.maintenance import promotion
from lockstep.errors import Unavailable
from lockstep.storage.memory import MemoryStore
from support.builders import configure, numbers, push_n
from support.clock import SetClock

# Nobody finds anything by looking from time to time: what happens here was told.
CONFIG = Config(promotion_interval_seconds=60, pop_check_seconds_min=60, pop_check_seconds_max=60)
WAIT_SECONDS_MAX = 30


def later(seconds: float, *, queue: str = "q") -> Batch:
    return Batch(queue, "p", Columns([b'{"n":1}']), NewSchedule(delay_seconds=seconds))


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Engine]:
    """On the real clock."""
    async with Engine(MemoryStore(), CONFIG) as engine:
        yield engine


async def test_scheduled_message_reaches_a_pop_that_waits(engine: Engine) -> None:
    await push_n(engine, "q", 1, partition="p")  # type: ignore[arg-type]
    await engine.pop([PopRequest(queue="q", auto_ack=True)])
    waiting = asyncio.create_task(engine.wait_pop(PopRequest(queue="q"), WAIT_SECONDS_MAX))
    await engine.push([later(0.2)])
    assert numbers(await waiting) == [1]


async def test_earlier_one_does_not_wait_for_a_later_one(engine: Engine) -> None:
    await engine.push([later(3600, queue="other")])
    waiting = asyncio.create_task(engine.wait_pop(PopRequest(queue="q"), WAIT_SECONDS_MAX))
    await engine.push(
        [NewMessage(queue="q", payload=b'{"n":1}', deliver_at=datetime.now(UTC) + timedelta(seconds=0.2))]
    )
    assert numbers(await waiting) == [1]


async def test_rescheduling_wakes_the_promotion(engine: Engine) -> None:
    [receipt] = await engine.push([later(3600)])
    waiting = asyncio.create_task(engine.wait_pop(PopRequest(queue="q"), WAIT_SECONDS_MAX))
    await engine.reschedule(ScheduleName(id=receipt.schedule_id), NewSchedule(delay_seconds=0))
    assert numbers(await waiting) == [1]


async def test_cron_reaches_a_pop_that_waits(engine: Engine) -> None:
    await engine.set_cron(NewCron(name="c", queue="q", expression="* * * * * *", payload=b'{"n":1}'))
    popped = await engine.wait_pop(PopRequest(queue="q"), WAIT_SECONDS_MAX)
    assert numbers(popped) == [1]


async def test_server_promotes_what_nobody_told_it_of() -> None:
    store = MemoryStore()
    config = Config(promotion_interval_seconds=0.05)
    async with Engine(store, config) as engine:
        maintenance = engine.maintenance()
        maintenance.start()
        await store.push([later(0.1)])
        popped = await engine.wait_pop(PopRequest(queue="q"), WAIT_SECONDS_MAX)
        await maintenance.stop()
    assert numbers(popped) == [1]


# --- Shown among the duties


class Telling(MemoryStore):
    """A store that knows what it was told of duties."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked = 0
        self.effects: list[dict[str, Any]] = []
        self.changed = asyncio.Event()

    async def claim_duty(self, name: str, **options: Any) -> DutyClaim:
        self.asked += 1
        self.changed.set()
        return await super().claim_duty(name, **options)

    async def finish_duty(self, name: str, *, effect: dict[str, Any] | None = None, **options: Any) -> bool:
        self.effects.append(effect or {})
        self.changed.set()
        return await super().finish_duty(name, effect=effect, **options)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


async def test_what_came_of_it_is_shown_among_the_duties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "_TOLD_SECONDS", 0.05)
    store = Telling()
    async with Engine(store, Config(promotion_interval_seconds=0.05)) as engine:
        await engine.push([later(0.1), later(0.1)])
        await store.until(lambda: sum(effect["messages"] for effect in store.effects) == 2)
        [duty] = await engine.duties()
    assert (duty.name, duty.last_error, duty.failures) == ("promotion", None, 0)
    assert duty.runs >= 1
    assert duty.claimed_by is not None


async def test_one_process_of_all_tells_of_it(clock: SetClock) -> None:
    """On a clock that stands still: only the first that asks may tell."""
    store = Telling(clock=clock)
    async with Engine(store, CONFIG) as one, Engine(store, CONFIG) as other:
        for engine in (one, other):
            await engine.push([later(3600)])
        await store.until(lambda: store.asked == 2)
    assert store.effects == [{"messages": 0, "postponed": {}}]


async def test_its_failure_is_shown_among_the_duties() -> None:
    class Away(Telling):
        async def promote(self, *, limit: int) -> Promoted:  # noqa: ARG002
            raise Unavailable("the database is away")

    store = Away()
    async with Engine(store, CONFIG) as engine:
        await engine.push([later(0.1)])
        await store.until(lambda: len(store.effects) == 1)
        [duty] = await engine.duties()
    assert (duty.last_error, duty.failures) == ("Unavailable: the database is away", 1)


# --- Single passes


class Announcing(MemoryStore):
    """A store that keeps what is announced."""

    announced: list[dict[str, Arrival]]

    def announce(self, arrivals: Mapping[str, Arrival]) -> None:
        self.announced.append(dict(arrivals))


async def test_pass_says_what_it_did_and_tells_where(clock: SetClock) -> None:
    store = Announcing(clock=clock)
    store.announced = []
    duty = Arrivals(store, Config(promotion_messages_max=2)).promotion
    assert (await duty.run_once()).effect == {"messages": 0, "postponed": {}}
    assert store.announced == []
    await store.push([later(1), later(2), later(3)])
    clock.advance(10)
    report = await duty.run_once()
    assert (report.effect["messages"], report.more) == (2, True)
    report = await duty.run_once()
    assert (report.effect["messages"], report.more) == (1, False)
    assert store.announced == [{"q": Arrival(1, 2)}, {"q": Arrival(1, 1)}]


async def test_what_is_postponed_is_said_once(clock: SetClock, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore(clock=clock)
    duty = Arrivals(store, Config()).promotion
    await configure(store, "q", max_size=1)
    await push_n(store, "q", 1)
    await store.push([later(1)])
    clock.advance(10)
    for _ in range(3):
        assert "QueueFull" in (await duty.run_once()).effect["postponed"]["q"]
    assert [record.message for record in caplog.records] == ["promotion_postponed"]


class Failing(MemoryStore):
    """A store that is away for a while."""

    failures = 2

    async def promote(self, *, limit: int) -> Promoted:
        if self.failures:
            self.failures -= 1
            raise Unavailable("the database is away")
        return await super().promote(limit=limit)


async def test_failure_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    async with Engine(Failing(), Config(promotion_interval_seconds=0.05)) as engine:
        await engine.push([later(0.1)])
        popped = await engine.wait_pop(PopRequest(queue="q"), WAIT_SECONDS_MAX)
    assert numbers(popped) == [1]
    assert [record.message for record in caplog.records] == ["promotion_failed"]


async def test_stop_ends_it_for_good() -> None:
    duty = Arrivals(MemoryStore(), CONFIG).promotion
    duty.start()
    await duty.stop()
    await duty.stop()
    duty.start()
    assert [task for task in asyncio.all_tasks() if task.get_name() == "lockstep-promotion"] == []
