"""Pop and ack, payloads delivered, against the plain INSERT of batches of 100."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from benchmarks.harness import CALLERS, Bar, Outcome, Side, progress
from benchmarks.messages import Messages
from benchmarks.scenarios.push import analyze
from benchmarks.scenarios.setting import Plain, Setting, table
from benchmarks.servers import opened_engine
from lockstep import Ack, Batch, Engine, PopRequest, Position

PARTITIONS = 1_000
GROUPS_AT_ONCE = 3
_MESSAGES_PER_SECOND = {100: 2_000_000, 10: 300_000}
"""By messages of each partition: how much backlog a slice gets. It ends early where that is used up."""


@dataclass(slots=True)
class Backlog:
    """A queue whose partitions hold so many messages each, and groups that have all of them before them.

    The same messages are consumed by group after group, so that what is delivered fits into the engine's cache.
    """

    queue: str
    each: int
    groups: list[str] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    """The groups that have consumed something since they were last at the start."""

    @property
    def messages(self) -> int:
        """Before each group."""
        return PARTITIONS * self.each

    async def push(self, engine: Engine, messages: Messages) -> None:
        """Every partition's messages in a segment of their own."""

        async def push_share(caller: int) -> None:
            for number in range(caller, PARTITIONS, CALLERS):
                await engine.push([Batch.of(self.queue, messages.batch(self.each), partition=f"p{number}")])

        await asyncio.gather(*[push_share(caller) for caller in range(CALLERS)])

    async def subscribe(self, engine: Engine, seconds: float) -> None:
        wanted = max(GROUPS_AT_ONCE, round(seconds * _MESSAGES_PER_SECOND[self.each] / self.messages))
        self.groups = [f"group-{number}" for number in range(wanted)]
        for group in self.groups:
            await engine.subscribe(self.queue, group)


@dataclass(slots=True)
class Consumers:
    """Callers that pop and ack, of a few groups at a time, until every group has had everything."""

    engine: Engine
    backlog: Backlog
    partitions: int
    batch: int
    waiting: list[str] = field(default_factory=list)

    async def prepare(self, _seconds: float) -> None:
        for group in self.backlog.touched:
            await self.engine.seek(self.backlog.queue, group, Position("start"))
        self.backlog.touched.clear()
        self.waiting = list(self.backlog.groups)

    async def pop_and_ack(self, _caller: int) -> int:
        while self.waiting:
            group = random.choice(self.waiting[:GROUPS_AT_ONCE])
            count = await self._once(group)
            if count:
                return count
            if group in self.waiting:
                self.waiting.remove(group)
        return 0

    async def _once(self, group: str) -> int:
        self.backlog.touched.add(group)
        request = PopRequest(queue=self.backlog.queue, group=group, partitions=self.partitions, batch=self.batch)
        [popped] = await self.engine.pop([request])
        payloads = popped.payloads()
        if payloads:
            [outcome] = await self.engine.ack([Ack(lease_id=popped.lease_id)])
            if outcome.messages != len(payloads):
                raise RuntimeError(f"{len(payloads)} messages were popped, but acked was {outcome}")
        return len(payloads)

    def side(self, name: str) -> Side:
        return Side(name, self.pop_and_ack, self.prepare)


@asynccontextmanager
async def prepared(setting: Setting, dsn: str, backlogs: list[Backlog]) -> AsyncIterator[tuple[Engine, Engine]]:
    """An engine that pushed the backlogs, and one that keeps no segments in memory."""
    async with (
        opened_engine(dsn, pool_connections_max=CALLERS) as engine,
        opened_engine(dsn, pool_connections_max=CALLERS, segment_cache_bytes_max=0) as cold,
    ):
        progress("  making the backlog …")
        for backlog in backlogs:
            await backlog.push(engine, setting.messages)
            await backlog.subscribe(engine, setting.seconds)
        await analyze(dsn)
        yield engine, cold


async def pop(setting: Setting) -> Outcome:
    hundred, ten = Backlog("bench.hundred", 100), Backlog("bench.ten", 10)
    async with (
        setting.server.database() as dsn,
        Plain.opened(dsn) as plain,
        prepared(setting, dsn, [hundred, ten]) as (engine, cold),
    ):
        others = [
            Consumers(engine, hundred, 10, 1000).side("pop + ack, 10 partitions x 100"),
            Consumers(engine, ten, 10, 100).side("pop + ack, 10 partitions x 10"),
            Consumers(engine, hundred, 1, 100).side("pop + ack, 1 partition x 100"),
            Consumers(cold, hundred, 10, 1000).side("pop + ack, 10 partitions x 100, no cache"),
        ]
        measured = await setting.compare(plain.side(setting.messages, 100), others)
    bar = Bar.at_least(f"{measured[1].name}: times the plain INSERT of 100", measured[1].ratio, 3)
    return Outcome([table("Pop + ack, against the plain INSERT of batches of 100", measured)], [bar])
