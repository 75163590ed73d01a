"""The schedule: each duty once per interval over all servers, none in the way of another, and a clean end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from lockstep.config import Config
from lockstep.engine.maintenance import Duties
from lockstep.engine.maintenance.duty import DutyReport
from lockstep.errors import Unavailable
from lockstep.storage.base import Store
from lockstep.storage.memory import MemoryStore
from lockstep.storage.postgres.store import PostgresStore
from support.builders import push_n
from support.clock import SetClock

WAIT_SECONDS_MAX = 10


class Counting:
    """A duty that counts its passes, and says so."""

    def __init__(self, name: str = "counting", *, interval_seconds: float = 60, more: int = 0) -> None:
        self.name = name
        self.interval_seconds = interval_seconds
        self.passes = 0
        self.changed = asyncio.Event()
        self._more = more

    async def run_once(self) -> DutyReport:
        self.passes += 1
        self.changed.set()
        return DutyReport({"passes": self.passes}, more=self.passes <= self._more)

    async def until(self, passes: int) -> None:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while self.passes < passes:
                self.changed.clear()
                await self.changed.wait()


class Failing(Counting):
    async def run_once(self) -> DutyReport:
        await super().run_once()
        raise Unavailable("the database is away")


class Endless(Counting):
    """A duty whose pass does not end by itself."""

    cancelled = False

    async def run_once(self) -> DutyReport:
        await super().run_once()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise AssertionError


class Slow(Counting):
    """A duty whose pass ends when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let = asyncio.Event()
        self.ended = False

    async def run_once(self) -> DutyReport:
        report = await super().run_once()
        await self.let.wait()
        self.ended = True
        return report


@pytest_asyncio.fixture
async def servers(database_dsn: str, clock: SetClock) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Two servers on one database."""
    stores = PostgresStore(database_dsn, clock=clock), PostgresStore(database_dsn, clock=clock)
    yield stores
    for store in stores:
        await store.close()


async def test_two_schedules_on_one_database_run_a_duty_once_per_interval(
    servers: tuple[PostgresStore, PostgresStore], clock: SetClock
) -> None:
    duty = Counting()
    schedules = [Duties(store, Config()) for store in servers]
    for interval in range(1, 4):
        waits = await asyncio.gather(*(schedule.run_due(duty) for schedule in schedules * 4))
        assert duty.passes == interval
        assert max(waits) <= 61
        clock.advance(60)
    [seen] = await servers[0].duties()
    assert (seen.runs, seen.last_effect) == (3, {"passes": 3})


async def test_claim_of_a_server_that_crashed_is_taken_over(
    servers: tuple[PostgresStore, PostgresStore], clock: SetClock
) -> None:
    """The first one is cut off in the middle of its pass, without a word."""
    config = Config(duty_hold_seconds=120)
    crashed = asyncio.ensure_future(Duties(servers[0], config).run_due(endless := Endless()))
    await endless.until(1)
    crashed.cancel()
    await asyncio.wait([crashed])
    other = Duties(servers[1], config)
    duty = Counting(endless.name)
    assert 60 <= await other.run_due(duty) <= 61, "it asks again long before the claim would end"
    clock.advance(119)
    await other.run_due(duty)
    assert duty.passes == 0
    clock.advance(1)
    await other.run_due(duty)
    assert duty.passes == 1
    [seen] = await servers[0].duties()
    assert (seen.claimed_by, seen.claimed_until, seen.runs) == (other.name, None, 1)


async def test_samples_survive_a_reopened_store(database_dsn: str, clock: SetClock) -> None:
    first = PostgresStore(database_dsn, clock=clock)
    await push_n(first, "q", 5)
    clock.advance(60)
    await first.sample()
    await first.close()
    await first.open()
    await push_n(first, "q", 2)
    await first.close()
    clock.advance(60)
    second = PostgresStore(database_dsn, clock=clock)
    await second.sample()
    assert [(taken.seconds, taken.pushed) for taken in await second.samples()] == [(60, 5), (60, 2)]
    await second.close()


async def test_started_schedule_does_every_duty(store: Store) -> None:
    duties = [Counting("a"), Counting("b"), Counting("c")]
    schedule = Duties(store, Config(), duties=duties)
    schedule.start()
    schedule.start()
    for duty in duties:
        await duty.until(1)
    await schedule.stop()
    await schedule.stop()
    assert [duty.passes for duty in duties] == [1, 1, 1]


async def test_schedule_asks_again_when_the_interval_is_over() -> None:
    duty = Counting(interval_seconds=1)
    schedule = Duties(MemoryStore(), Config(), duties=[duty])
    schedule.start()
    await duty.until(3)
    await schedule.stop()


async def test_duty_with_more_to_do_goes_on_at_once(clock: SetClock) -> None:
    """On a clock that stands still, so no interval is ever over."""
    duty = Counting(more=4)
    schedule = Duties(MemoryStore(clock=clock), Config(), duties=[duty])
    schedule.start()
    await duty.until(5)
    await schedule.stop()
    assert duty.passes == 5


async def test_duty_with_much_to_do_does_not_keep_others_from_theirs(clock: SetClock) -> None:
    busy, other = Counting("busy", more=10**9), Counting("other")
    schedule = Duties(MemoryStore(clock=clock), Config(), duties=[busy, other])
    schedule.start()
    await other.until(1)
    await schedule.stop()


async def test_failing_duty_is_logged_shown_and_tried_again(clock: SetClock, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore(clock=clock)
    failing, sound = Failing("failing"), Counting("sound")
    schedule = Duties(store, Config(), duties=[failing, sound])
    schedule.start()
    await sound.until(1)
    await schedule.stop()
    [record] = [record for record in caplog.records if record.getMessage() == "duty_failed"]
    assert record.exc_info is not None
    shown = {duty.name: duty for duty in await store.duties()}
    assert (shown["failing"].failures, shown["failing"].last_error) == (1, "Unavailable: the database is away")
    assert shown["failing"].claimed_until is None
    assert (shown["sound"].failures, shown["sound"].last_error) == (0, None)
    clock.advance(60)
    await schedule.run_due(failing)
    assert failing.passes == 2


class Partial(Counting):
    """A duty that leaves a queue out."""

    async def run_once(self) -> DutyReport:
        await super().run_once()
        return DutyReport({"messages": 3}, problems=("queue q: it is locked",))


async def test_queue_that_a_duty_left_out_is_told_with_what_it_did(
    clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore(clock=clock)
    await Duties(store, Config(), duties=[]).run_due(Partial())
    [shown] = await store.duties()
    assert (shown.last_error, shown.last_effect, shown.failures) == ("queue q: it is locked", {"messages": 3}, 1)
    assert [record.getMessage() for record in caplog.records] == ["duty_failed"]


async def test_database_that_is_away_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    config = Config(connect_attempts_max=1, breaker_failures_max=1, breaker_open_seconds=60)
    away = PostgresStore("postgresql://nobody@localhost:1/none", config=config, breaker=True)
    schedule = Duties(away, Config())
    for _ in range(3):
        assert await schedule.run_due(Counting(interval_seconds=7)) == 7
    assert [record.getMessage() for record in caplog.records] == ["database_away"], "once, and not for each duty"
    await away.close()


async def test_stop_waits_for_the_pass_that_is_running() -> None:
    duty = Slow()
    schedule = Duties(store := MemoryStore(), Config(), duties=[duty])
    schedule.start()
    await duty.until(1)
    stopping = asyncio.ensure_future(schedule.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    duty.let.set()
    await stopping
    assert duty.ended
    assert [seen.runs for seen in await store.duties()] == [1]


async def test_stop_cuts_off_a_pass_that_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    duty = Endless()
    schedule = Duties(MemoryStore(), Config(duty_stop_seconds_max=0.001), duties=[duty])
    schedule.start()
    await duty.until(1)
    await schedule.stop()
    assert duty.cancelled
    assert [record.getMessage() for record in caplog.records] == ["duty_cancelled"]


async def test_stopped_schedule_can_be_started_again() -> None:
    duty = Counting(interval_seconds=1)
    schedule = Duties(MemoryStore(), Config(), duties=[duty])
    schedule.start()
    await duty.until(1)
    await schedule.stop()
    schedule.start()
    await duty.until(2)
    await schedule.stop()


async def test_stop_without_a_start_is_nothing() -> None:
    await Duties(MemoryStore(), Config()).stop()
