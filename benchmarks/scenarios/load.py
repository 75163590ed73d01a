"""A spike of ten times what the server can sustain, with and without load management; and what queueing costs."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import partial
from typing import Any

from benchmarks.harness import Bar, Outcome, Side, Table, progress
from benchmarks.http_client import Connection, request
from benchmarks.messages import transaction_ids
from benchmarks.processes import children, cpu_seconds
from benchmarks.scenarios.http import server_process
from benchmarks.scenarios.setting import QUEUE, Setting, table
from benchmarks.servers import opened_engine
from benchmarks.spike import QUEUE as SPIKE_QUEUE
from lockstep import Batch, Engine
from lockstep.core.applying import ApplyLimits
from lockstep.core.operations import NewOperation
from lockstep.storage.postgres.store import PostgresStore

MESSAGES = 500
"""In a request, each to another partition."""
PARTITIONS = 1_000
CONNECTIONS = 32
SPIKE_CONNECTIONS = 4_000
"""Clients that ask all at once: fewer connections would be a limit of their own, before the server."""
SPIKE = 10
TIMEOUT_SECONDS = 10.0
START_SECONDS_MAX = 60.0
"""Of the load generator, which makes its requests and its connections first."""
REQUESTS = 256
"""That are queued, or executed, as one call."""


# --- A spike ------------------------------------------------------------------------------------------------


async def spike_scenario(setting: Setting) -> Outcome:
    seconds = 10.0 if setting.seconds >= 1 else 3.0
    rows, bars = [], []
    sustained = await _sustained(setting, min(seconds, 5.0))
    for managed in (True, False):
        row = await _spike(setting, sustained, seconds, managed=managed)
        # Measured around the spike, because others may use the machine, too.
        after = await _sustained(setting, min(seconds, 5.0))
        row["goodput"] = round(row["messages_per_second"] / (MESSAGES * (sustained + after) / 2), 3)
        rows.append(row)
        progress(f"{row['name']}: {row['answers']}")
        if managed:
            bars.append(Bar.at_least("share of requests answered in a spike", row["answered"], 1.0))
            bars.append(Bar.at_least("goodput in a spike, times the sustainable rate", row["goodput"], 0.8))
            bars.append(Bar.at_most("accepted messages lost in a spike", row["lost"], 0))
    return Outcome(
        [Table(f"{SPIKE} times {sustained:.0f} requests/s of {MESSAGES} messages for {seconds:.0f} s", rows)], bars
    )


async def _sustained(setting: Setting, seconds: float) -> float:
    """Requests in a second that the server executes, asked by so many connections without a pause."""
    async with setting.server.database() as dsn, server_process(dsn, load_management=False) as (url, _):
        await _generate(url, 0, 1.0, CONNECTIONS)
        told = await _generate(url, 0, seconds, CONNECTIONS)
    return float(told["answers"]["201"] / told["seconds"])


async def _spike(setting: Setting, sustained: float, seconds: float, *, managed: bool) -> dict[str, Any]:
    # All of it comes from one address, and who gives up comes again before the server has noticed.
    limits = {"connections_max": 16_000, "connections_per_address_max": 16_000}
    async with setting.server.database() as dsn, server_process(dsn, load_management=managed, **limits) as (url, pid):
        await _generate(url, 0, 1.0, CONNECTIONS)
        before, cpu = await _stored(dsn), cpu_seconds(children(pid))
        told = await _generate(url, sustained * SPIKE, seconds, SPIKE_CONNECTIONS)
        ended = time.perf_counter()
        await _drained(url)
        drain_seconds = time.perf_counter() - ended
        stored, cpu = await _stored(dsn) - before, cpu_seconds(children(pid)) - cpu
    answers, whole_seconds = told["answers"], told["seconds"] + drain_seconds
    accepted = MESSAGES * (answers.get("201", 0) + answers.get("202", 0))
    answered = sum([count for answer, count in answers.items() if answer in ("201", "202", "429")])
    return {
        "name": "with load management" if managed else "without",
        "answers": answers,
        "answered": round(answered / max(sum(answers.values()), 1), 4),
        "p50_ms": round(told["p50_ms"] or 0, 1),
        "p99_ms": round(told["p99_ms"] or 0, 1),
        "drain_seconds": round(drain_seconds, 2),
        "server_cpu": round(cpu / whole_seconds, 2),
        "generator_cpu": round(told["cpu_seconds"] / told["seconds"], 2),
        # From the first request until all that was accepted is applied.
        "messages_per_second": round(stored / whole_seconds),
        # A request that timed out may have been stored all the same.
        "lost": max(accepted - stored, 0),
    }


async def _generate(url: str, rate: float, seconds: float, connections: int) -> Any:
    arguments = [url, rate, seconds, MESSAGES, PARTITIONS, connections, TIMEOUT_SECONDS]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.spike", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(seconds + TIMEOUT_SECONDS + START_SECONDS_MAX):
            said, complaint = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(f"the load generator failed ({process.returncode}): {complaint.decode().strip()[-2000:]}")
    return json.loads(said)


async def _drained(url: str) -> None:
    connection = await Connection.to(url)
    async with asyncio.timeout(300):
        while True:
            _, body = await connection.ask(request("GET", "/api/v1/operations/stats"))
            stats = json.loads(body)
            if not any(row["operations"] for row in stats["pending"]):
                break
            await asyncio.sleep(0.05)
    connection.close()


async def _stored(dsn: str) -> int:
    async with opened_engine(dsn, pool_connections_max=1) as engine:
        return (await engine.queue(SPIKE_QUEUE)).messages


# --- What queueing costs ------------------------------------------------------------------------------------


async def queueing(setting: Setting) -> Outcome:
    """A call for so many requests of one message each: executed, and queued; and what it takes to apply them later."""
    tables, bars = [], []
    async with setting.server.database() as dsn, opened_engine(dsn, pool_connections_max=4) as engine:
        store = PostgresStore(dsn)
        await store.open()
        for partitions in (1, REQUESTS):
            execute = _execute(store, setting, partitions)
            others = [_queue(store, setting, partitions)]
            await _create(engine, partitions)
            measured = await setting.compare(execute, others)
            await _discard(store)
            tables.append(table(f"{REQUESTS} requests with transaction ids to {partitions} partitions", measured))
            if partitions > 1:
                bars.append(Bar.at_least("queueing: times as many requests as executing", measured[1].ratio, 1.3))
        await store.close()
    return Outcome(tables, bars)


async def _create(engine: Engine, partitions: int) -> None:
    await engine.push([Batch.of(QUEUE, [b"1"], partition=f"p{number}") for number in range(partitions)])


def _requests(setting: Setting, partitions: int) -> list[list[Batch]]:
    payloads = setting.messages.batch(REQUESTS)
    ids = transaction_ids(REQUESTS)
    return [
        [Batch.of(QUEUE, [payload], partition=f"p{number % partitions}", transaction_ids=[ids[number]])]
        for number, payload in enumerate(payloads)
    ]


def _execute(store: PostgresStore, setting: Setting, partitions: int) -> Side:
    async def execute(_: int) -> int:
        await store.push([batch for request in _requests(setting, partitions) for batch in request])
        return REQUESTS

    return Side("execute", execute, prepare=partial(_discard, store), callers=1)


def _queue(store: PostgresStore, setting: Setting, partitions: int) -> Side:
    async def queue(_: int) -> int:
        await store.queue_operations([NewOperation(request) for request in _requests(setting, partitions)])
        return REQUESTS

    return Side("queue", queue, prepare=partial(_discard, store), callers=1)


async def _discard(store: PostgresStore, _: float = 0.0) -> None:
    """What was queued would keep the pushes back."""
    while (await store.apply_operations("push", by="bench", limits=ApplyLimits())).operations:
        pass
