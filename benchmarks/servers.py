"""The PostgreSQL that a benchmark runs on, and databases on it that leave nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.harness import progress
from lockstep.config import load
from lockstep.engine.engine import Engine
from lockstep.storage.postgres.database import QueryHook
from lockstep.storage.postgres.embedded import EmbeddedPostgres
from lockstep.storage.postgres.store import PostgresStore

SETTINGS = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "max_wal_size")
_URL = re.compile(r"^(postgres(?:ql)?://[^/?]*)(?:/[^?]*)?")


@contextmanager
def running_server(dsn: str | None = None) -> Iterator[str]:
    """The given server, or an embedded PostgreSQL with its default settings, gone with its data afterwards."""
    if dsn is not None:
        yield dsn
        return
    directory = Path(tempfile.mkdtemp(prefix="lockstep-bench-"))
    try:
        # When we are root another user runs the server, who has to get there.
        directory.chmod(0o755)
        with EmbeddedPostgres(directory / "data", on_progress=lambda text: progress(f"PostgreSQL: {text}")) as s:
            yield s.superuser_dsn  # it makes databases and checkpoints
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Server:
    """A PostgreSQL server, through a connection of its own that no measurement uses."""

    def __init__(self, dsn: str, connection: asyncpg.Connection) -> None:
        self._dsn = dsn
        self._connection = connection
        self._numbers = itertools.count(1)

    async def settings(self) -> dict[str, Any]:
        return {name: await self._connection.fetchval(f"show {name}") for name in SETTINGS}

    async def wal_bytes(self) -> int:
        return int(await self._connection.fetchval("select pg_current_wal_lsn() - '0/0'"))

    async def checkpoint(self) -> None:
        """So that none comes, as far as possible, during the measurement that follows."""
        await self._connection.execute("checkpoint")

    async def own_databases(self) -> list[str]:
        """Those that this process made and has not dropped."""
        rows = await self._connection.fetch(
            "select datname from pg_database where starts_with(datname, $1)", _own_names()
        )
        return [row[0] for row in rows]

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """An empty database's DSN. Whatever else the server holds is left alone."""
        name = f"{_own_names()}{next(self._numbers)}"
        await self._connection.execute(f"create database {name}")
        try:
            yield with_database(self._dsn, name)
        finally:
            await asyncio.shield(self._connection.execute(f"drop database if exists {name} with (force)"))


@asynccontextmanager
async def connection(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(dsn)
    try:
        yield opened
    finally:
        await opened.close()


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Server]:
    async with connection(dsn) as opened:
        yield Server(dsn, opened)


def _own_names() -> str:
    return f"lockstep_bench_{os.getpid()}_"


def with_database(dsn: str, name: str) -> str:
    changed, count = _URL.subn(lambda match: f"{match[1]}/{name}", dsn)
    if not count:
        raise ValueError("the DSN must be a URL: postgresql://…")
    return changed


@asynccontextmanager
async def opened_engine(dsn: str, *, on_query: QueryHook | None = None, **settings: object) -> AsyncIterator[Engine]:
    """An engine with default settings but for these, whatever the environment says."""
    config = load(settings, environ={})
    async with Engine(PostgresStore(dsn, config=config, on_query=on_query), config) as engine:
        yield engine
