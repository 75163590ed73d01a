"""A row per message in a plain table: what PostgreSQL itself can insert. Nothing consumes from it."""

from __future__ import annotations

import asyncpg

from benchmarks.peers.drive import Take

TABLE = """
create table plain (
    id bigserial primary key, partition_id bigint, payload jsonb, created_at timestamptz default now()
) with (autovacuum_enabled = off)
"""
INSERT = "insert into plain (partition_id, payload) select $1, p::jsonb from unnest($2::text[]) p"


class Driver:
    def __init__(self, address: str, *, index: bool = False, copy: bool = False) -> None:
        self._address = address
        self._index = index
        self._copy = copy

    async def setup(self) -> None:
        connection = await asyncpg.connect(self._address)
        await connection.execute(TABLE)
        if self._index:
            await connection.execute("create index on plain (partition_id, id)")
        await connection.close()

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(self._address, min_size=10, max_size=10)

    async def close(self) -> None:
        await self._pool.close()

    async def push(self, caller: int, bodies: list[bytes]) -> None:
        texts = [each.decode() for each in bodies]
        async with self._pool.acquire() as connection:
            if self._copy:
                rows = [(caller, text) for text in texts]
                await connection.copy_records_to_table("plain", records=rows, columns=["partition_id", "payload"])
            else:
                await connection.execute(INSERT, caller, texts)

    async def consume(self, take: Take) -> None:
        raise NotImplementedError("a plain table has no consumers")
