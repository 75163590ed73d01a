"""How long after its time a pop that waits has a message, when producer and consumer are on different servers.

Every lane is a queue of its own. In a round one client acts on a server, after a while of no particular length, and
another one's pop waits on the other server; what counts is from when the message is due to when the waiting client has
it, its own work included.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg

import lockstep
from benchmarks.harness import Bar, Outcome, Table, percentile, progress
from benchmarks.scenarios.http import server_process
from benchmarks.scenarios.setting import Setting
from benchmarks.servers import opened_engine
from lockstep import AsyncClient, NewMessage

LANES = 3
"""Of each kind, at once."""
PAUSE_SECONDS_MAX = 0.9
"""Before something is done: a wait between two checks that notice nothing of it may be as long."""
BAR_MS = 30.0
_WAIT_SECONDS = 30.0
_SQL_PUSH = "select lockstep.push($1, 'p', '1'::jsonb)"


@dataclass(slots=True)
class Lane:
    queue: str
    here: AsyncClient
    """Where something is done."""
    there: AsyncClient
    """Where a pop waits."""
    dsn: str
    sql: asyncpg.Pool


Act = Callable[[Lane], Awaitable[float]]
"""Does something that makes a message due; returns when it is, at the earliest."""


@dataclass(slots=True)
class Kind:
    name: str
    act: Act
    options: dict[str, Any] = field(default_factory=dict)
    leased: bool = False
    """A message is leased on the first server before the pop on the other one begins to wait."""
    late: list[float] = field(default_factory=list)


async def _push(lane: Lane) -> float:
    began = time.time()
    await lane.here.push(lane.queue, 1, partition="p")
    return began


async def _delayed(lane: Lane) -> float:
    return await _push(lane) + 1.0


async def _sql_push(lane: Lane) -> float:
    began = time.time()
    await lane.sql.fetchval(_SQL_PUSH, lane.queue)
    return began


async def _push_within(lane: Lane) -> float:
    message = NewMessage(queue=lane.queue, partition="p", payload=b"1")
    async with await psycopg.AsyncConnection.connect(lane.dsn) as connection:
        await lockstep.push_within_async(connection, [message])
        return time.time()


async def _push_within_told_after(lane: Lane) -> float:
    message = NewMessage(queue=lane.queue, partition="p", payload=b"1")
    async with await psycopg.AsyncConnection.connect(lane.dsn) as connection:
        pushed = await lockstep.push_within_async(connection, [message], notify=False)
        began = time.time()
        await connection.commit()
        await lockstep.notify_pushed_async(connection, pushed)
    return began


async def _schedule(lane: Lane) -> float:
    due_at = datetime.now(UTC) + timedelta(seconds=random.uniform(0.3, 1.5))
    await lane.here.push(lane.queue, 1, partition="p", deliver_at=due_at)
    return due_at.timestamp()


async def _retry(lane: Lane) -> float:
    began = time.time()
    delivery = _LEASED.pop(lane.queue)
    await delivery.nack("again")
    return began + 0.5


async def _lease_ends(lane: Lane) -> float:
    return float(_LEASED.pop(lane.queue).expires_at.timestamp())


_LEASED: dict[str, Any] = {}
"""What the first server has leased, by queue."""


def _kinds() -> list[Kind]:
    return [
        Kind("push", _push),
        Kind("SQL push", _sql_push),
        Kind("push_within", _push_within),
        Kind("push_within, told after the commit", _push_within_told_after),
        Kind("delayed queue", _delayed, {"delay_seconds": 1}),
        Kind("schedule", _schedule),
        Kind("retry delay", _retry, {"retry_delay_ms": 500, "retry_limit": 1000}, leased=True),
        Kind("lease that ends", _lease_ends, {"lease_seconds": 2, "retry_limit": 1000}, leased=True),
    ]


async def _round(lane: Lane, kind: Kind, until: float) -> None:
    if kind.leased:
        await lane.here.push(lane.queue, 1, partition="p")
        _LEASED[lane.queue] = await lane.here.pop(lane.queue, wait=True, timeout_seconds=_WAIT_SECONDS)
    waiting = asyncio.create_task(_wait(lane))
    await asyncio.sleep(random.uniform(0.0, PAUSE_SECONDS_MAX))
    due = await kind.act(lane)
    got = await waiting
    if got < until:
        kind.late.append(got - due)


async def _wait(lane: Lane) -> float:
    delivery = await lane.there.pop(lane.queue, wait=True, timeout_seconds=_WAIT_SECONDS)
    got = time.time()
    if not len(delivery):
        raise RuntimeError(f"{lane.queue}: nothing came")
    await delivery.ack()
    return got


async def _rounds(lane: Lane, kind: Kind, until: float) -> None:
    while time.time() < until:
        await _round(lane, kind, until)


async def lateness(setting: Setting) -> Outcome:
    seconds = max(30 * setting.seconds, 3.0)
    kinds = _kinds()
    async with setting.server.database() as dsn:
        async with opened_engine(dsn):
            pass  # makes the tables, before two servers begin at once
        async with (
            server_process(dsn) as (here_url, _),
            server_process(dsn) as (there_url, _),
            lockstep.connect_async(here_url) as here,
            lockstep.connect_async(there_url) as there,
            asyncpg.create_pool(dsn, min_size=1, max_size=LANES) as sql,
        ):
            work = []
            for kind in kinds:
                for number in range(LANES):
                    lane = Lane(f"late.{kind.name}.{number}", here, there, dsn, sql)
                    await here.configure(lane.queue, **kind.options)
                    work.append(_rounds(lane, kind, time.time() + seconds))
            await asyncio.gather(*work)
    rows = [_row(kind) for kind in kinds]
    for row in rows:
        progress(f"  {row['name']:36} p50 {row['p50_ms']:6.1f}  p99 {row['p99_ms']:6.1f}  most {row['max_ms']:6.1f} ms")
    bars = [Bar.at_most(f"lateness of a waiting pop: {row['name']}, p99 ms", row["p99_ms"], BAR_MS) for row in rows]
    return Outcome([Table("How late a pop that waits on another server has a message, ms", rows)], bars)


def _row(kind: Kind) -> dict[str, Any]:
    late_ms = [1000 * each for each in kind.late]
    return {
        "name": kind.name,
        "rounds": len(late_ms),
        "p50_ms": round(percentile(late_ms, 50), 1),
        "p99_ms": round(percentile(late_ms, 99), 1),
        "max_ms": round(max(late_ms), 1),
    }
