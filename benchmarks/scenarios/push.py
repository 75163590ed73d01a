"""Push against the plain INSERT of the same batch: to one, to ten and to as many partitions as messages."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle

from benchmarks.harness import CALLERS, Bar, Measurement, Outcome, Side
from benchmarks.messages import Messages, transaction_ids
from benchmarks.scenarios.setting import PREPARED_CALLS, QUEUE, Plain, Setting, table
from benchmarks.servers import connection, opened_engine
from lockstep import Batch, Engine

PARTITIONS = 10_000
"""All of them exist before anything is measured."""
_CREATE_AT_ONCE = 1_000
_TRANSACTION_IDS_PER_SECOND = 400_000
"""A slice ends early on a machine that uses up more."""

GROUPED_QUEUE = "bench.grouped"


async def create_partitions(engine: Engine, messages: Messages, queue: str = QUEUE) -> None:
    """One message to each, with a transaction id, so that no table that we push to is empty when it is analyzed."""
    for start in range(0, PARTITIONS, _CREATE_AT_ONCE):
        payloads, ids = messages.batch(_CREATE_AT_ONCE), transaction_ids(_CREATE_AT_ONCE)
        batches = [
            Batch.of(queue, [payload], partition=f"p{number}", transaction_ids=[transaction_id])
            for number, (payload, transaction_id) in enumerate(zip(payloads, ids, strict=True), start)
        ]
        await engine.push(batches)


async def analyze(dsn: str) -> None:
    async with connection(dsn) as direct:
        await direct.execute("analyze")


def push_side(engine: Engine, messages: Messages, size: int, partitions: int, *, queue: str = QUEUE) -> Side:
    """Every caller has one partition of its own, or takes as many of all of them for every call."""
    name = f"push, batch {size}, {partitions} partition{'s' * (partitions > 1)}"
    calls: list[Iterator[list[Batch]]]
    if partitions == 1:
        calls = [
            cycle([[Batch.of(queue, messages.batch(size), partition=f"p{i}")] for _ in range(PREPARED_CALLS)])
            for i in range(CALLERS)
        ]
    else:
        calls = [cycle([spread(messages.batch(size), partitions, queue) for _ in range(PREPARED_CALLS)])] * CALLERS

    async def push(caller: int) -> int:
        await engine.push(next(calls[caller]))
        return size

    return Side(name, push)


def spread(payloads: list[bytes], partitions: int, queue: str) -> list[Batch]:
    """The payloads over so many partitions, evenly."""
    each = len(payloads) // partitions
    chosen = random.sample(range(PARTITIONS), partitions)
    return [
        Batch.of(queue, payloads[i * each : (i + 1) * each], partition=f"p{number}") for i, number in enumerate(chosen)
    ]


@dataclass(slots=True)
class _Deduplicated:
    """Pushes with a transaction id on every message; none is used twice."""

    engine: Engine
    messages: Messages
    size: int
    calls: list[list[list[Batch]]]

    async def prepare(self, seconds: float) -> None:
        count = int(seconds * _TRANSACTION_IDS_PER_SECOND / self.size / CALLERS)
        self.calls = [[self._call(caller) for _ in range(max(count, 1))] for caller in range(CALLERS)]

    def _call(self, caller: int) -> list[Batch]:
        ids: list[str | None] = list(transaction_ids(self.size))
        payloads = self.messages.batch(self.size)
        return [Batch.of(QUEUE, payloads, partition=f"p{caller}", transaction_ids=ids)]

    async def push(self, caller: int) -> int:
        if not self.calls[caller]:
            return 0
        pushed = await self.engine.push(self.calls[caller].pop())
        if pushed.duplicates:
            raise RuntimeError("a transaction id was used twice")
        return self.size

    def side(self) -> Side:
        return Side(f"push, batch {self.size}, 1 partition, transaction ids", self.push, self.prepare)


async def push_small(setting: Setting) -> Outcome:
    tables = []
    async with _prepared(setting) as (plain, engine):
        for size, partitions in ((1, (1,)), (10, (1, 10))):
            measured = await _measure(setting, plain, engine, size, partitions)
            tables.append(table(f"Push, batch {size}", measured))
    return Outcome(tables)


async def push_100(setting: Setting) -> Outcome:
    async with _prepared(setting) as (plain, engine):
        measured = await _measure(setting, plain, engine, 100, (1, 10, 100))
    return Outcome([table("Push, batch 100", measured)], [_bar(measured[1], 1.8)])


async def push_1000(setting: Setting) -> Outcome:
    async with _prepared(setting) as (plain, engine):
        measured = await _measure(setting, plain, engine, 1000, (1, 10, 1000))
    one, thousand = measured[1], measured[3]
    wal = Bar.at_most(f"{one.name}: WAL bytes per message", one.wal_bytes_per_message, 80)
    return Outcome([table("Push, batch 1000", measured)], [_bar(one, 5), wal, _bar(thousand, 0.45)])


async def push_more(setting: Setting) -> Outcome:
    """What costs extra: deduplication, and groups that a push has to look after."""
    size = 1000
    messages = setting.messages
    async with _prepared(setting, GROUPED_QUEUE) as (plain, engine):
        for number in range(3):
            await engine.subscribe(GROUPED_QUEUE, f"group-{number}")
        grouped = push_side(engine, messages, size, size, queue=GROUPED_QUEUE)
        others = [
            _Deduplicated(engine, messages, size, []).side(),
            Side(f"{grouped.name}, 3 groups", grouped.work),
        ]
        measured = await setting.compare(plain.side(messages, size), others)
    return Outcome([table("Push, batch 1000, with more to do", measured)], [_bar(measured[1], 0.7)])


@asynccontextmanager
async def _prepared(setting: Setting, *more_queues: str) -> AsyncIterator[tuple[Plain, Engine]]:
    """Both sides in one database, with all partitions there and statistics that know of them."""
    async with (
        setting.server.database() as dsn,
        Plain.opened(dsn) as plain,
        opened_engine(dsn, pool_connections_max=CALLERS) as engine,
    ):
        for queue in (QUEUE, *more_queues):
            await create_partitions(engine, setting.messages, queue)
        await analyze(dsn)
        yield plain, engine


async def _measure(
    setting: Setting, plain: Plain, engine: Engine, size: int, partitions: tuple[int, ...]
) -> list[Measurement]:
    others = [push_side(engine, setting.messages, size, count) for count in partitions]
    return await setting.compare(plain.side(setting.messages, size), others)


def _bar(measured: Measurement, target: float) -> Bar:
    return Bar.at_least(f"{measured.name}: times the plain INSERT", measured.ratio, target)
