"""Random operations on messages that wait and on recurring ones: PostgreSQL against the memory store, and both against
what is promised: everything comes once, not before its time, and in due order within its partition."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from lockstep.core.crons import NewCron
from lockstep.core.messages import Batch, Columns, NewSchedule, Receipt
from lockstep.core.policy import QueueOptions
from lockstep.core.records import PopRequest
from lockstep.core.schedules import ScheduleFilter, ScheduleName
from lockstep.errors import LockstepError
from lockstep.storage.base import Store
from lockstep.storage.memory import MemoryStore
from model.correspondence import Correspondence, plain
from model.operations import attempt
from support.clock import START, SetClock
from support.fuzz import examples

QUEUES = ["a", "b"]
PARTITIONS = ["p", "q"]
CRONS = ["c", "d"]

queues = st.sampled_from(QUEUES)
partitions = st.sampled_from(PARTITIONS)
waits = st.sampled_from([0, 0, 1, 5, 20, 61, 400])
delays = st.sampled_from([None, 0, 0.05, 1, 5, 5, 20, 100])
back = st.integers(0, 5)


@dataclass(frozen=True)
class Plan:
    queue: str
    partition: str
    delay: float | None
    at_a_time: bool
    key: str | None
    transaction_ids: list[str | None]

    def batch(self, first: int, now: datetime) -> Batch:
        payloads = [b'{"n":%d}' % number for number in range(first, first + len(self.transaction_ids))]
        columns = Columns(payloads, self.transaction_ids if any(self.transaction_ids) else None)
        return Batch(self.queue, self.partition, columns, self._schedule(now))

    def _schedule(self, now: datetime) -> NewSchedule | None:
        if self.delay is None:
            return None
        key = self.key if len(self.transaction_ids) == 1 else None
        if self.at_a_time:
            return NewSchedule(deliver_at=now + timedelta(seconds=self.delay), key=key)
        return NewSchedule(delay_seconds=self.delay, key=key)


plans = st.lists(
    st.builds(
        Plan,
        queue=queues,
        partition=partitions,
        delay=delays,
        at_a_time=st.booleans(),
        key=st.sampled_from([None, None, "k", "l"]),
        transaction_ids=st.lists(st.sampled_from([None, None, "t1", "t2"]), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=3,
)
crons = st.builds(
    NewCron,
    name=st.sampled_from(CRONS),
    queue=queues,
    partition=partitions,
    expression=st.sampled_from(["* * * * *", "*/5 * * * *", "*/20 * * * * *"]),
    payload=st.just(b'{"n":0}'),
    catch_up=st.sampled_from(["skip", "one", "all"]),
    enabled=st.sampled_from([True, True, True, False]),
)


class ScheduleMachine(RuleBasedStateMachine):
    def __init__(self, runner: asyncio.Runner, postgres: Store, clock: SetClock) -> None:
        super().__init__()
        self.runner, self.postgres, self.clock = runner, postgres, clock
        clock.now = START
        self.memory: Store = MemoryStore(clock=clock)
        self.same = Correspondence()
        self._number = 0
        self._scheduled: list[int] = []
        self._due: dict[int, datetime] = {}
        """Of every message that waited, by its number: its last due time."""
        self._numbers: dict[int, int] = {}
        self._popped: list[int] = []
        runner.run(self._empty())

    async def _empty(self) -> None:
        for queue in await self.postgres.queues():
            await self.postgres.delete_queue(queue.name)
        for cron in await self.postgres.crons():
            await self.postgres.remove_cron(cron.name)

    def call(self, verb: str, *arguments: Any, **keywords: Any) -> Any:
        return self.runner.run(self._call(verb, *arguments, **keywords))

    async def _call(self, verb: str, *arguments: Any, **keywords: Any) -> Any:
        here = await attempt(self.memory, verb, *arguments, **keywords)
        translated = [self.same.translate(argument) for argument in arguments]
        there = await attempt(self.postgres, verb, *translated, **keywords)
        differences = self.same.differences(plain(here), plain(there))
        assert not differences, "\n".join([f"{verb}{arguments}{keywords}", "memory != postgres:", *differences])
        return here

    @rule(plans=plans, wait=waits)
    def push(self, plans: list[Plan], wait: float) -> None:
        self.clock.advance(wait)
        batches = []
        for plan in plans:
            batches.append(plan.batch(self._number + 1, self.clock.now))
            self._number += len(plan.transaction_ids)
        first = self._number - sum(len(batch.columns) for batch in batches) + 1
        result = self.call("push", batches)
        if not isinstance(result, LockstepError):
            for number, receipt in enumerate(result, first):
                self._note(number, receipt)

    def _note(self, number: int, receipt: Receipt) -> None:
        if receipt.status == "scheduled":
            assert receipt.schedule_id is not None
            assert receipt.due_at is not None
            self._scheduled.append(receipt.schedule_id)
            self._numbers[receipt.schedule_id] = number
            self._due[number] = receipt.due_at

    @rule(limit=st.sampled_from([1, 2, 100]), wait=waits)
    def promote(self, limit: int, wait: float) -> None:
        self.clock.advance(wait)
        self.call("promote", limit=limit)

    @rule(which=back)
    def cancel(self, which: int) -> None:
        if self._scheduled:
            self.call("cancel_schedule", ScheduleName(id=_newest(self._scheduled, which)))

    @rule(queue=queues, key=st.sampled_from(["k", "l"]), delay=st.sampled_from([0, 3, 50]))
    def reschedule_by_key(self, queue: str, key: str, delay: float) -> None:
        self._reschedule(ScheduleName(queue=queue, key=key), delay)

    @rule(which=back, delay=st.sampled_from([0, 3, 50]))
    def reschedule(self, which: int, delay: float) -> None:
        if self._scheduled:
            self._reschedule(ScheduleName(id=_newest(self._scheduled, which)), delay)

    def _reschedule(self, which: ScheduleName, delay: float) -> None:
        moved = self.call("reschedule", which, NewSchedule(delay_seconds=delay))
        if not isinstance(moved, LockstepError):
            self._due[self._numbers[moved.id]] = moved.due_at

    @rule(cron=crons, wait=waits)
    def set_cron(self, cron: NewCron, wait: float) -> None:
        self.clock.advance(wait)
        self.call("set_cron", cron)

    @rule(name=st.sampled_from(CRONS), enabled=st.booleans())
    def enable_cron(self, name: str, enabled: bool) -> None:
        self.call("enable_cron", name, enabled)

    @rule(name=st.sampled_from(CRONS))
    def remove_cron(self, name: str) -> None:
        self.call("remove_cron", name)

    @rule(queue=queues, max_size=st.sampled_from([0, 3]))
    def configure(self, queue: str, max_size: int) -> None:
        self.call("configure", queue, QueueOptions(max_size=max_size))

    @rule(queue=queues)
    def delete_queue(self, queue: str) -> None:
        self.call("delete_queue", queue)

    @rule(queue=queues)
    def pop(self, queue: str) -> None:
        """Nothing comes twice or before its time, and what waited comes in due order in its partition."""
        [popped] = self.call("pop", [PopRequest(queue=queue, batch=10, partitions=2, auto_ack=True)])
        last: dict[str, datetime] = {}
        for message in popped.messages():
            number = message.json()["n"]
            if number not in self._due:
                continue
            assert number not in self._popped
            self._popped.append(number)
            assert message.created_at >= self._due[number]
            same_push = last.setdefault(f"{message.partition} {message.created_at}", self._due[number])
            assert self._due[number] >= same_push
            last[f"{message.partition} {message.created_at}"] = self._due[number]

    @rule()
    def look(self) -> None:
        self.runner.run(self._look())

    async def _look(self) -> None:
        await self._call("schedules", ScheduleFilter(), limit=1000)
        await self._call("crons")
        await self._call("queues")
        for queue in await self.memory.queues():
            await self._call("schedules", ScheduleFilter(queue=queue.name, key_prefix="k"))
            await self._call("partitions", queue.name)
        assert await self.postgres.verify() == []

    def teardown(self) -> None:
        self.runner.run(self._look())
        self.runner.run(self.memory.close())


def _newest(known: list[int], which: int) -> int:
    return known[-1 - which % len(known)]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def test_postgres_store_agrees_with_memory_store_on_schedules(runner: asyncio.Runner, database_dsn: str) -> None:
    from lockstep.storage.postgres.store import PostgresStore

    clock = SetClock()
    postgres = PostgresStore(database_dsn, clock=clock)
    runner.run(postgres.open())
    bounds = examples(20, soak=1000, stateful_step_count=40, phases=[Phase.generate])
    try:
        run_state_machine_as_test(lambda: ScheduleMachine(runner, postgres, clock), settings=bounds)
    finally:
        runner.run(postgres.close())
