"""Everything that changes a queue, at once: locks are taken in one order, so PostgreSQL finds no deadlock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import asyncpg
import pytest

from lockstep import Ack, Batch, PopRequest, Position, QueueOptions, Renewal, Subscription
from lockstep.errors import NotFound
from lockstep.storage.postgres.store import PostgresStore

QUEUES = ("first", "second")
WORKERS = 8
STEPS = 120
LIMITED = QueueOptions(max_size=100_000, lease_seconds=2)


class Worker:
    """Does one thing after the other, at random; the leases are everybody's."""

    def __init__(self, store: PostgresStore, leases: list[str], seed: int) -> None:
        self._store = store
        self._leases = leases
        self._random = Random(seed)
        self._actions: list[tuple[Callable[[], Awaitable[object]], int]] = [
            (self.push, 4),
            (self.pop, 6),
            (self.ack, 5),
            (self.renew, 3),
            (self.clear, 1),
            (self.seek, 1),
            (self.configure, 1),
        ]

    async def work(self) -> None:
        actions, weights = zip(*self._actions, strict=True)
        for action in self._random.choices(actions, weights, k=STEPS):
            with suppress(NotFound):  # a partition that nobody has pushed to yet
                await action()

    def _queue(self) -> str:
        return self._random.choice(QUEUES)

    def _some_leases(self) -> list[str]:
        return self._random.sample(self._leases, min(len(self._leases), self._random.randint(1, 3)))

    async def push(self) -> None:
        queues = self._random.sample(QUEUES, self._random.randint(1, 2))
        await self._store.push(
            [Batch.of(queue, [b"1"] * 5, partition=f"p{self._random.randint(0, 5)}") for queue in queues]
        )

    async def pop(self) -> None:
        group = self._random.choice(("shared", "shared", "ordered"))
        request = PopRequest(queue=self._queue(), group=group, batch=20, partitions=self._random.randint(1, 4))
        [popped] = await self._store.pop([request])
        if popped.lease_id is not None:
            self._leases.append(popped.lease_id)

    async def ack(self) -> None:
        status = self._random.choice(("completed", "completed", "failed", "retry", "released"))
        leases = self._some_leases()
        for lease in leases:
            self._leases.remove(lease)
        if leases:
            await self._store.ack([Ack(lease_id=lease, status=status) for lease in leases])

    async def renew(self) -> None:
        leases = self._some_leases()
        if leases:
            await self._store.renew([Renewal(lease_id=lease, seconds=5) for lease in leases])

    async def clear(self) -> None:
        scope = self._random.choice(("all", "unleased"))
        await self._store.clear(self._queue(), partition=self._random.choice((None, "p1", "p2")), scope=scope)

    async def seek(self) -> None:
        partition = self._random.choice((None, "p1", "p2"))
        group = self._random.choice(("shared", "ordered"))
        position = Position(self._random.choice(("start", "end")))
        await self._store.seek(self._queue(), group, position, partition=partition)

    async def configure(self) -> None:
        await self._store.configure(self._queue(), LIMITED)


@pytest.mark.parametrize("seed", [1, 2])
async def test_what_changes_a_limited_queue_at_once_never_deadlocks(database_dsn: str, seed: int) -> None:
    store = PostgresStore(database_dsn)
    await store.open()
    try:
        for queue in QUEUES:
            await store.configure(queue, LIMITED)
            await store.subscribe(queue, "shared", Subscription(), mode="shared")
            await store.subscribe(queue, "ordered", Subscription())
        leases: list[str] = []
        await asyncio.gather(*[Worker(store, leases, seed * 100 + i).work() for i in range(WORKERS)])
        assert await store.verify() == []
    finally:
        await store.close()
    assert await deadlocks(database_dsn) == 0, await told_of(database_dsn)


async def deadlocks(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("select pg_stat_force_next_flush()")
        found: int = await connection.fetchval(
            "select pg_stat_get_db_deadlocks(oid) from pg_database where datname = current_database()"
        )
        return found
    finally:
        await connection.close()


async def told_of(dsn: str) -> str:
    """What the log of the embedded PostgreSQL says of its last deadlock: who waited for whom, with what."""
    connection = await asyncpg.connect(dsn)
    try:
        data = await connection.fetchval("select current_setting('data_directory')")
    finally:
        await connection.close()
    log = Path(data).parent / "postgres.log"
    _, found, after = (log.read_text(errors="replace") if log.exists() else "").rpartition("deadlock detected")
    return found + after[:10_000]
