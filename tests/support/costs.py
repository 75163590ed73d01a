"""The cost of a call: the blocks that it reads, counted by PostgreSQL, and the tables that it scans completely."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from support.sessions import Actor, Stage

COUNTERS = """
select t.relname, t.seq_scan,
       io.heap_blks_read + io.heap_blks_hit + coalesce(io.idx_blks_read + io.idx_blks_hit, 0)
       + coalesce(io.toast_blks_read + io.toast_blks_hit + io.tidx_blks_read + io.tidx_blks_hit, 0)
from pg_stat_user_tables t join pg_statio_user_tables io using (relid)
where t.schemaname = 'lockstep'
"""
FLUSH = "select pg_stat_force_next_flush()"

# These tables have few rows, or one for each queue or group: a full scan is the cheapest plan there.
SMALL_TABLES = {
    "queue",
    "consumer_group",
    "subscription",
    "depth",
    "operation_sum",
    "system",
    "migration",
    "procedures",
}


@dataclass(frozen=True)
class Cost:
    blocks: int
    scanned: frozenset[str]
    """Tables that were read from end to end."""


def vacuum_analyze(dsn: str, *tables: str) -> None:
    """Vacuum and analyze, and count what that reads now: not when the session has ended, in the midst of a call."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"vacuum analyze {', '.join(tables)}".encode())
        connection.execute(FLUSH.encode())


async def cost(stage: Stage, actor: Actor, call: Callable[[], Awaitable[Any]]) -> Cost:
    """The reads of one call."""
    await actor.sql(FLUSH)
    before = {row[0]: row for row in await stage.observer.fetch(COUNTERS)}
    await call()
    await actor.sql(FLUSH)
    after = await stage.observer.fetch(COUNTERS)
    return Cost(
        sum(row[2] - before[row[0]][2] for row in after),
        frozenset(row[0] for row in after if row[1] > before[row[0]][1]) - SMALL_TABLES,
    )
