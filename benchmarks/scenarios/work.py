"""Work queues: lease and complete messages of one partition, against the plain INSERT of batches of the same size.

Both sides have 4 connections. A work queue is there for many consumers, so the bar is for 32 of them, which share these
connections; there is also a side with as many consumers as the INSERT has callers.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.harness import CALLERS, Bar, Outcome, Side, progress
from benchmarks.scenarios.push import analyze
from benchmarks.scenarios.setting import Plain, Setting, table
from benchmarks.servers import opened_engine
from lockstep import Ack, Batch, Engine, PopRequest, Position

QUEUE = "bench.work"
GROUP = "workers"
MESSAGES = 600_000
SEGMENT = 1_000
SIZES = (100, 10, 1)
MANY = 32


@dataclass(slots=True)
class Workers:
    """Callers that share one partition: each leases some messages and completes them."""

    engine: Engine
    batch: int
    callers: int = CALLERS

    async def prepare(self, _seconds: float) -> None:
        await self.engine.seek(QUEUE, GROUP, Position("start"))

    async def lease_and_complete(self, _caller: int) -> int:
        [popped] = await self.engine.pop([PopRequest(queue=QUEUE, group=GROUP, batch=self.batch)])
        payloads = popped.payloads()
        if payloads:
            [outcome] = await self.engine.ack([Ack(lease_id=popped.lease_id)])
            if outcome.messages != len(payloads):
                raise RuntimeError(f"{len(payloads)} messages were leased, but completed was {outcome}")
        return len(payloads)

    def side(self) -> Side:
        name = f"lease + complete of {self.batch}, {self.callers} consumers"
        return Side(name, self.lease_and_complete, self.prepare, callers=self.callers)


async def work(setting: Setting) -> Outcome:
    tables, bars = [], []
    async with (
        setting.server.database() as dsn,
        Plain.opened(dsn) as plain,
        opened_engine(dsn, pool_connections_max=CALLERS) as engine,
    ):
        progress("  making the backlog …")
        for _ in range(MESSAGES // SEGMENT):
            await engine.push([Batch.of(QUEUE, setting.messages.batch(SEGMENT))])
        await engine.subscribe(QUEUE, GROUP, mode="shared")
        await analyze(dsn)
        for size in SIZES:
            sides = [Workers(engine, size).side(), Workers(engine, size, MANY).side()]
            measured = await setting.compare(plain.side(setting.messages, size), sides)
            tables.append(table(f"Lease + complete, against the plain INSERT of batches of {size}", measured))
            if size == 100:
                bars.append(Bar.at_least(f"{measured[2].name}: times the plain INSERT of 100", measured[2].ratio, 2))
    return Outcome(tables, bars)
