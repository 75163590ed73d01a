"""Procrastinate: jobs are deferred in batches, and a worker runs them concurrently."""

from __future__ import annotations

import json
import logging
from typing import Any

import procrastinate

from benchmarks.peers.drive import Take

CONCURRENCY = 20


class Driver:
    def __init__(self, address: str) -> None:
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        self._app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=address, min_size=4, max_size=20)
        )
        self._take: Take | None = None

        @self._app.task(name="job")
        async def job(**body: Any) -> None:
            assert self._take is not None
            self._take([body])

        self._job = job

    async def setup(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await self._app.open_async()

    async def close(self) -> None:
        await self._app.close_async()

    async def push(self, _caller: int, bodies: list[bytes]) -> None:
        await self._job.batch_defer_async(*map(json.loads, bodies))

    async def consume(self, take: Take) -> None:
        self._take = take
        await self._app.run_worker_async(
            concurrency=CONCURRENCY,
            install_signal_handlers=False,
            delete_jobs="always",
            fetch_job_polling_interval=0.1,
            shutdown_graceful_timeout=2,
        )
