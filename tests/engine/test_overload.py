"""A PostgreSQL that stalls, under the default settings: its server sheds before clients lose their patience."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from lockstep.config import Config
from lockstep.core.messages import Batch
from lockstep.core.records import PopRequest
from lockstep.engine.engine import Engine
from lockstep.engine.load import Decision
from lockstep.errors import LockTimeout, Overloaded
from lockstep.storage.postgres.store import PostgresStore
from support.until import until

CLIENTS = 100


@pytest_asyncio.fixture
async def engine(database_dsn: str) -> AsyncIterator[Engine]:
    async with Engine(PostgresStore(database_dsn), Config()) as engine:
        engine.start_operations()
        await engine.push([Batch.of("q", [b"0"], partition=f"p{number}") for number in range(CLIENTS)])
        yield engine


class Clients:
    """Each pushes a message after the other, and gives up when a client does by default."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.answers: Counter[str] = Counter()
        self.accepted: dict[int, list[int]] = {}
        self.stopping = False

    async def run(self) -> None:
        await asyncio.gather(*[self._produce(number) for number in range(CLIENTS)])

    async def _produce(self, number: int) -> None:
        count = 0
        while not self.stopping:
            count += 1
            try:
                async with asyncio.timeout(Config().client_timeout_seconds):
                    batch = Batch.of("q", [b"%d" % count], partition=f"p{number}")
                    result = await self.engine.push([batch], queued="return")
            except Overloaded:
                self.answers["refused"] += 1
                await asyncio.sleep(0.01)
            except LockTimeout:
                self.answers["failed"] += 1
            except TimeoutError:
                self.answers["timed out"] += 1
            else:
                self.answers["accepted" if result.operation is None else "deferred"] += 1
                self.accepted.setdefault(number, []).append(count)


@pytest.mark.parametrize(
    ("tables", "shed"),
    [("lockstep.segment", "deferred"), ("lockstep.segment, lockstep.operation", "refused")],
)
async def test_store_that_stalls_makes_the_server_shed(
    engine: Engine, database_dsn: str, tables: str, shed: str
) -> None:
    """Pushes are queued if that still works, and refused if it does not either."""
    clients = Clients(engine)
    holder = await asyncpg.connect(database_dsn)
    try:
        running = asyncio.create_task(clients.run())
        await until(lambda: clients.answers["accepted"] > CLIENTS)
        async with holder.transaction():
            await holder.execute(f"lock table {tables} in exclusive mode")
            await until(lambda: clients.answers[shed] > CLIENTS, seconds=25)
        clients.stopping = True
        await running
    finally:
        await holder.close()
    assert clients.answers["timed out"] == 0
    await until(lambda: engine.counts.load["push"].answer is Decision.EXECUTE, seconds=25)
    found: dict[int, list[int]] = {}
    while popped := (await engine.pop([PopRequest(queue="q", batch=10_000, partitions=CLIENTS, auto_ack=True)]))[0]:
        for message in popped.messages():
            found.setdefault(int(message.partition[1:]), []).append(int(message.payload))
    assert {number: counts[1:] for number, counts in found.items()} == clients.accepted
