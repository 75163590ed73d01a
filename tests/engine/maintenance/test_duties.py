"""Every duty by its run_once, on a set clock, and what the schedule leaves to be seen of it."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.config import Config
from lockstep.core.maintenance import DutyInfo, Place, Verified
from lockstep.core.records import Problem
from lockstep.engine.engine import Engine
from lockstep.engine.maintenance.duty import Duty, DutyReport
from lockstep.engine.maintenance.eviction import Eviction
from lockstep.engine.maintenance.history import History
from lockstep.engine.maintenance.idle_partitions import IdlePartitions
from lockstep.engine.maintenance.retention import Retention
from lockstep.engine.maintenance.samples import Samples
from lockstep.engine.maintenance.schedule import Duties, all_duties
from lockstep.engine.maintenance.verification import Verification
from lockstep.errors import InvalidName, InvalidRequest, Unavailable
from lockstep.storage.base import Store
from lockstep.storage.memory import MemoryStore
from support.builders import batch, configure, listed, numbers, pop, pop_all, push_n
from support.clock import SetClock

AGE = 100
SHORT = Config(duty_pass_seconds_max=0.001, retention_batch_messages_max=1, verify_partitions_max=1)
"""Passes that end after a batch or two."""


async def until_done(duty: Duty) -> list[DutyReport]:
    """Passes until one leaves nothing to do."""
    reports = [await duty.run_once()]
    while reports[-1].more:
        assert len(reports) < 1000, "the duty has no end"
        reports.append(await duty.run_once())
    return reports


async def test_retention_removes_by_both_policies(store: Store, clock: SetClock) -> None:
    await configure(store, "completed", retention_enabled=True, completed_retention_seconds=AGE)
    await configure(store, "any", retention_enabled=True, retention_seconds=AGE)
    await configure(store, "kept")
    for queue in ("completed", "any", "kept"):
        await push_n(store, queue, 2)
        await push_n(store, queue, 1, start=3)
        await pop(store, queue, batch=2, auto_ack=True)
    clock.advance(AGE + 1)
    report = await Retention(store, Config()).run_once()
    assert report == DutyReport({"completed_retention": 2, "retention": 3})
    assert [len(await listed(store, queue)) for queue in ("completed", "any", "kept")] == [1, 0, 3]
    assert numbers(await pop_all(store, "completed")) == [3]
    assert await store.verify() == []


@pytest.mark.parametrize("config", [Config(), SHORT])
async def test_retention_goes_on_where_its_last_pass_ended(store: Store, clock: SetClock, config: Config) -> None:
    await configure(store, "q", retention_enabled=True, retention_seconds=AGE)
    for number in range(1, 21):
        await push_n(store, "q", start=number)
    clock.advance(AGE + 1)
    reports = await until_done(Retention(store, config))
    assert sum(report.effect["retention"] for report in reports) == 20
    assert await listed(store, "q") == []
    [removal] = await store.removals()
    assert removal.messages == 20


async def test_eviction_removes_what_waited_too_long(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_wait_seconds=AGE)
    await push_n(store, "q", 3)
    await pop(store, "q", batch=1, auto_ack=True)
    clock.advance(AGE + 1)
    await push_n(store, "q", 1, start=4)
    assert await Eviction(store, Config()).run_once() == DutyReport({"eviction": 2, "expiry": 0})
    assert [removal.kind for removal in await store.removals()] == ["eviction"]
    assert numbers(await pop_all(store, "q")) == [4]


async def test_idle_partitions_go_only_where_a_setting_asks_for_it(store: Store, clock: SetClock) -> None:
    await store.push([batch("q", 1, partition=name) for name in ("a", "b")])
    await store.clear("q", partition="a")
    never = IdlePartitions(store, Config())
    after_an_hour = IdlePartitions(store, Config(idle_partition_seconds=3600))
    for duty in (never, after_an_hour):
        assert await duty.run_once() == DutyReport({"partitions": 0})
    clock.advance(3600)
    assert await never.run_once() == DutyReport({"partitions": 0})
    assert await after_an_hour.run_once() == DutyReport({"partitions": 1})
    assert [partition.name for partition in await store.partitions("q")] == ["b"]


async def test_samples_are_taken_and_forgotten(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 3)
    clock.advance(60)
    assert await Samples(store, Config()).run_once() == DutyReport({"queues": 1})
    history = History(store, Config(history_seconds_max=60))
    clock.advance(60)
    assert await history.run_once() == DutyReport({"rows": 0})
    assert [taken.pushed for taken in await store.samples()] == [3]
    clock.advance(1)
    assert await history.run_once() == DutyReport({"rows": 1})
    assert await store.samples() == []


@pytest.mark.parametrize("config", [Config(), SHORT])
async def test_verify_tells_how_much_it_looked_at(store: Store, config: Config) -> None:
    await store.push([batch("q", 1, partition=f"p{number}") for number in range(5)])
    reports = await until_done(Verification(store, config))
    assert reports[-1].effect == {"complete": True, "partitions": 5, "problems": 0, "shown": []}
    assert (await Verification(store, config).run_once()).effect["partitions"] <= 5


class Broken(MemoryStore):
    """A store with more problems than are shown, over two slices of one queue."""

    async def verify_slice(self, *, after: Place | None = None, partitions: int) -> Verified:
        texts = range(15) if after is None else range(15, 30)
        problems = [Problem(kind="seq_gap", text=f"gap {n}", repairable=False, queue="q") for n in texts]
        return Verified(problems, partitions, Place("q", 1) if after is None else None)


async def test_verify_shows_the_first_problems_and_counts_all(caplog: pytest.LogCaptureFixture) -> None:
    duty = Verification(Broken(), Config(verify_partitions_max=2))
    effect = (await duty.run_once()).effect
    assert (effect["complete"], effect["partitions"], effect["problems"]) == (True, 4, 30)
    assert [shown["text"] for shown in effect["shown"]] == [f"gap {n}" for n in range(20)]
    assert effect["shown"][0]["queue"] == "q"
    assert [record.getMessage() for record in caplog.records] == ["problem_found"] * 30
    assert (await duty.run_once()).effect["problems"] == 30, "each walk counts anew"


async def test_every_duty_leaves_its_effect_to_be_seen(store: Store, clock: SetClock) -> None:
    await configure(store, "q", retention_enabled=True, retention_seconds=AGE, max_wait_seconds=AGE)
    await push_n(store, "q", 2, partition="p")
    clock.advance(AGE + 1)
    config = Config(idle_partition_seconds=1)
    maintenance = Duties(store, config)
    for duty in all_duties(store, config):
        await maintenance.run_due(duty)
    seen = {duty.name: duty for duty in await Engine(store, config).duties()}
    assert {name: duty.last_effect for name, duty in seen.items()} == {
        "samples": {"queues": 1},
        "eviction": {"eviction": 2, "expiry": 0},
        "retention": {"completed_retention": 0, "retention": 0},
        "idle_partitions": {"partitions": 0},
        "deleted_queues": {"partitions": 0, "messages": 0},
        "groups": {"cursors": 0},
        "audit": {"entries": 0},
        "clock": {"moved": 0},
        "operations": {"bundles": 0},
        "history": {"rows": 0},
        "verify": {"complete": True, "partitions": 2, "problems": 0, "shown": []},
    }
    for duty in seen.values():
        assert isinstance(duty, DutyInfo)
        assert (duty.runs, duty.failures, duty.claimed_by) == (1, 0, maintenance.name)
        assert (duty.last_started_at, duty.last_finished_at) == (clock.now, clock.now)


@pytest.mark.parametrize("verb", ["samples", "removals"])
@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"queue": ""}, InvalidName),
        ({"from_at": "today"}, InvalidRequest),
        ({"to_at": 5}, InvalidRequest),
        ({"after": "row"}, InvalidRequest),
        ({"limit": 0}, InvalidRequest),
        ({"limit": 1001}, InvalidRequest),
    ],
)
async def test_engine_refuses_bad_input(verb: str, given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        await getattr(Engine(MemoryStore(), Config()), verb)(**given)


async def test_engine_shows_samples_and_removals(store: Store, clock: SetClock) -> None:
    engine = Engine(store, Config())
    await configure(store, "q", max_wait_seconds=AGE)
    await push_n(store, "q")
    clock.advance(AGE + 1)
    await store.sample()
    await store.prune("eviction", limit=1)
    assert await engine.samples() == await engine.samples(queue="q", to_at=clock.ahead(1)) == await store.samples()
    assert await engine.removals() == await engine.removals(queue="q") == await store.removals()
    assert len(await engine.removals()) == len(await engine.samples()) == 1
    assert await engine.samples(from_at=clock.ahead(1)) == []


class Stumbling(MemoryStore):
    """A store whose third slice fails as often as is said."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.asked: list[int] = []

    async def verify_slice(self, *, after: Place | None = None, partitions: int) -> Verified:
        number = 0 if after is None else after.after
        self.asked.append(number)
        if number == 2 and self.failures:
            self.failures -= 1
            raise Unavailable
        return Verified([], min(partitions, 1), Place("q", number + 1) if number < 4 else None)


async def test_walk_goes_on_where_a_batch_failed() -> None:
    store = Stumbling(failures=1)
    duty = Verification(store, Config())
    with pytest.raises(Unavailable):
        await duty.run_once()
    assert (await duty.run_once()).effect["partitions"] == 5
    assert store.asked == [0, 1, 2, 2, 3, 4]


async def test_walk_starts_anew_where_a_batch_fails_again() -> None:
    store = Stumbling(failures=2)
    duty = Verification(store, Config())
    for _ in range(2):
        with pytest.raises(Unavailable):
            await duty.run_once()
    assert (await duty.run_once()).effect["partitions"] == 5
    assert store.asked == [0, 1, 2, 2, 0, 1, 2, 3, 4]
