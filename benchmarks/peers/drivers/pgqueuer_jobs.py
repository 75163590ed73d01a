"""PgQueuer: jobs are enqueued in batches, and a worker takes them in batches."""

from __future__ import annotations

import logging
from typing import Any

import asyncpg
from pgqueuer import AsyncpgPoolDriver, PgQueuer, Queries

from benchmarks.peers.drive import Take

BATCH = 1000


class Driver:
    def __init__(self, address: str) -> None:
        self._address = address
        logging.getLogger("pgqueuer").setLevel(logging.ERROR)

    async def setup(self) -> None:
        await self.open()
        await self._queries.install()
        await self.close()

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(self._address, min_size=4, max_size=10)
        self._driver = AsyncpgPoolDriver(self._pool)
        self._queries = Queries(self._driver)

    async def close(self) -> None:
        await self._pool.close()

    async def push(self, _caller: int, bodies: list[bytes]) -> None:
        await self._queries.enqueue(["job"] * len(bodies), bodies, [0] * len(bodies))

    async def consume(self, take: Take) -> None:
        worker = PgQueuer(self._driver)

        @worker.entrypoint("job")
        async def job(job: Any) -> None:
            take([job.payload])

        await worker.run(batch_size=BATCH)
