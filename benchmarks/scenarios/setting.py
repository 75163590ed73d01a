"""What every scenario of the core benchmark starts from: the server, the messages, and the plain INSERT."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import asyncpg

from benchmarks.harness import CALLERS, Measurement, Side, Table, compare
from benchmarks.messages import Messages
from benchmarks.servers import Server

PREPARED_CALLS = 64
"""How many different inputs there are for each kind of call; they are used in turn."""

QUEUE = "bench.orders"


@dataclass(frozen=True, slots=True)
class Setting:
    server: Server
    messages: Messages
    rounds: int
    seconds: float
    """How long one slice takes."""
    partitions_many: int
    """How many partitions are many."""

    async def compare(self, base: Side, others: list[Side]) -> list[Measurement]:
        await self.server.checkpoint()
        return await compare(base, others, rounds=self.rounds, seconds=self.seconds, wal=self.server.wal_bytes)


# Its vacuum would come at any time, also in slices of others: 28 MB of WAL a second in the midst of what is measured.
_CREATE_PLAIN = """
create table plain (
    id bigserial primary key, partition_id bigint, payload jsonb, created_at timestamptz default now()
) with (autovacuum_enabled = off)
"""
_INSERT_PLAIN = "insert into plain (partition_id, payload) select $1, p::jsonb from unnest($2::text[]) p"


class Plain:
    """A row per message in a minimal table, as fast as that goes: the usual limit of queues on PostgreSQL."""

    def __init__(self, statements: list[Any]) -> None:
        self._statements = statements

    @classmethod
    @asynccontextmanager
    async def opened(cls, dsn: str, callers: int = CALLERS) -> AsyncIterator[Plain]:
        connections = [await asyncpg.connect(dsn) for _ in range(callers)]
        try:
            await connections[0].execute(_CREATE_PLAIN)
            yield cls([await connection.prepare(_INSERT_PLAIN) for connection in connections])
        finally:
            for connection in connections:
                await connection.close()

    def side(self, messages: Messages, size: int, callers: int = CALLERS) -> Side:
        inputs = cycle([messages.text_batch(size) for _ in range(PREPARED_CALLS)])

        async def insert(caller: int) -> int:
            await self._statements[caller].fetch(caller, next(inputs))
            return size

        name = f"plain INSERT, batch {size}"
        return Side(name if callers == CALLERS else f"{name}, {callers} connections", insert, callers=callers)


def table(title: str, measured: list[Measurement]) -> Table:
    return Table(title, [each.row() for each in measured])
