"""PGMQ by its SQL functions: batches are sent, read with a visibility timeout, and deleted."""

from __future__ import annotations

import asyncio

import asyncpg

from benchmarks.peers.drive import Take

QUEUE = "bench"
BATCH = 1000
CONSUMERS = 4


class Driver:
    def __init__(self, address: str) -> None:
        self._address = address

    async def setup(self) -> None:
        from pgmq import get_embedded_install_sql

        connection = await asyncpg.connect(self._address)
        await connection.execute(get_embedded_install_sql())
        await connection.execute("select pgmq.create($1)", QUEUE)
        await connection.close()

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(self._address, min_size=10, max_size=10)

    async def close(self) -> None:
        await self._pool.close()

    async def push(self, _caller: int, bodies: list[bytes]) -> None:
        texts = [each.decode() for each in bodies]
        await self._pool.execute("select pgmq.send_batch($1, $2::text[]::jsonb[])", QUEUE, texts)

    async def consume(self, take: Take) -> None:
        await asyncio.gather(*[self._consume(take) for _ in range(CONSUMERS)])

    async def _consume(self, take: Take) -> None:
        while True:
            rows = await self._pool.fetch("select msg_id, message from pgmq.read($1, 30, $2)", QUEUE, BATCH)
            if not rows:  # its own way to wait, at its shortest interval
                rows = await self._pool.fetch(
                    "select msg_id, message from pgmq.read_with_poll($1, 30, $2, 5, 10)", QUEUE, BATCH
                )
            if rows:
                await self._pool.fetch("select pgmq.delete($1, $2::bigint[])", QUEUE, [row[0] for row in rows])
                take([row[1] for row in rows])
