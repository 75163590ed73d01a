"""Jobs from end to end, enqueued and processed, against job queues that keep a row per job in the same PostgreSQL.

Each library is used as its own documentation says, with what it offers for speed: jobs are enqueued in batches, one
process works on them in batches where the library has that and with some concurrency, each by a call of a coroutine
that does nothing, and each is completed. A call ends when all of its jobs are done. Every library has a database of its
own on the same server.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg

from benchmarks.harness import Bar, Outcome, Side, Table, progress
from benchmarks.scenarios.setting import Setting, table
from lockstep import Batch, connect_async

JOBS = 5_000
"""Of one call."""
JOBS_SINGLE = 500
"""Of one call to a library that takes jobs one by one, so that it does not last too long."""
BATCH = 1_000
"""Jobs that are enqueued, and taken, together."""
CONCURRENCY = 10
"""Jobs that a worker handles at a time."""
QUEUE = "bench.jobs"
TIMES_BETTER = 5
PEERS = ("procrastinate", "pgqueuer")
INSTALL = "pip install -e '.[bench]'"

Work = Callable[[int], Awaitable[int]]


@asynccontextmanager
async def lockstep_jobs(dsn: str) -> AsyncIterator[Work]:
    """A shared group: messages are leased by the batch, and each is completed when its handler returns."""
    async with connect_async(dsn) as client:
        await client.configure(QUEUE)
        await client.subscribe(QUEUE, "workers", mode="shared")
        done = 0

        @client.worker(QUEUE, group="workers", mode="shared", batch=BATCH, concurrency=4)
        async def job(_message: Any) -> None:
            nonlocal done
            done += 1
            if done == JOBS:
                client.stop()

        async def work(_caller: int) -> int:
            nonlocal done
            done = 0
            for _ in range(JOBS // BATCH):
                await client.push_many([Batch.of(QUEUE, [b'{"n":1}'] * BATCH)])
            await client.run(stop_on_signals=False)
            return done

        yield work


@asynccontextmanager
async def procrastinate_jobs(dsn: str) -> AsyncIterator[Work]:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn))
    done = 0

    @app.task(name="job")
    async def job(n: int) -> None:
        nonlocal done
        done += n

    async def work(_caller: int) -> int:
        nonlocal done
        done = 0
        await job.batch_defer_async(*[{"n": 1}] * JOBS_SINGLE)
        await app.run_worker_async(concurrency=CONCURRENCY, wait=False, install_signal_handlers=False)
        return done

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        yield work


@asynccontextmanager
async def pgqueuer_jobs(dsn: str) -> AsyncIterator[Work]:
    from pgqueuer import AsyncpgPoolDriver, PgQueuer, Queries
    from pgqueuer.domain.types import QueueExecutionMode

    async with asyncpg.create_pool(dsn, min_size=2, max_size=CONCURRENCY) as pool:
        driver = AsyncpgPoolDriver(pool)
        queries = Queries(driver)
        await queries.install()
        done = 0

        async def work(_caller: int) -> int:
            nonlocal done
            done = 0
            for _ in range(JOBS // BATCH):
                await queries.enqueue(["job"] * BATCH, [b'{"n":1}'] * BATCH, [0] * BATCH)
            worker = PgQueuer(driver)  # one can be run once

            @worker.entrypoint("job")
            async def job(_job: Any) -> None:
                nonlocal done
                done += 1

            await worker.run(batch_size=BATCH, mode=QueueExecutionMode.drain)
            return done

        yield work


_OPENED = {"procrastinate": (procrastinate_jobs, JOBS_SINGLE), "pgqueuer": (pgqueuer_jobs, JOBS)}


async def peers(setting: Setting) -> Outcome:
    found = [name for name in PEERS if importlib.util.find_spec(name) is not None]
    if not found:
        progress(f"  neither {' nor '.join(PEERS)} is installed: {INSTALL}")
        return Outcome([Table(f"Jobs from end to end: install the others by {INSTALL}", [])], [])
    for name in found:  # a line for each job is not what is measured
        logging.getLogger(name).setLevel(logging.ERROR)
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(
            lockstep_jobs(await stack.enter_async_context(setting.server.database()))
        )
        sides = []
        for name in found:
            dsn = await stack.enter_async_context(setting.server.database())
            opened, jobs = _OPENED[name]
            work = await stack.enter_async_context(opened(dsn))
            sides.append(Side(f"{name}, {jobs} jobs", _checked(work, jobs), callers=1))
        measured = await setting.compare(Side(f"Lockstep, {JOBS} jobs", _checked(ours, JOBS), callers=1), sides)
    best = max(each.ratio for each in measured[1:])
    bar = Bar.at_least("Lockstep: times the better of the others", 1 / best, TIMES_BETTER)
    return Outcome([table("Jobs from end to end: enqueued in batches, processed one by one", measured)], [bar])


def _checked(work: Work, jobs: int) -> Work:
    async def checked(caller: int) -> int:
        async with asyncio.timeout(120):
            done = await work(caller)
        if done != jobs:
            raise RuntimeError(f"{done} of {jobs} jobs were done")
        return done

    return checked
