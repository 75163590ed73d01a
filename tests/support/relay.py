"""A server behind a socket of our own, which hangs when a test says so: its sockets stay open, and nothing answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit


def through(dsn: str, directory: Path) -> str:
    """The DSN of the same database behind another socket."""
    parts = urlsplit(dsn)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    query |= {"host": str(directory), "port": "5432"}
    user = f"{parts.username}@" if parts.username else ""
    return urlunsplit(parts._replace(netloc=user, query=urlencode(query)))


class Carrier:
    """Carries what comes over a connection to the server of a DSN, and back; nothing while it is not `awake`."""

    def __init__(self, dsn: str, *, awake: asyncio.Event | None = None) -> None:
        parts = urlsplit(dsn)
        query = parse_qs(parts.query)
        self._host = query.get("host", [parts.hostname])[0] or "localhost"
        self._port = query.get("port", [parts.port or 5432])[0]
        self._awake = awake
        self._tasks: set[asyncio.Task[Any]] = set()

    def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """For asyncio.start_server and its like. Tasks of our own, because a server does not wait for its tasks."""
        self._tasks.add(asyncio.create_task(self._serve(reader, writer)))

    async def close(self, server: asyncio.Server) -> None:
        """Take no more connections, and wait for the ends of those that there are."""
        server.close()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks = {task for task in self._tasks if not task.done()}

    def abandon(self) -> None:
        """Wait for nobody: a test that failed has left its connections open, or its server asleep."""
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            if self._host.startswith("/"):
                there, back = await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
            else:
                there, back = await asyncio.open_connection(self._host, int(self._port))
            ends.append(back)
            await asyncio.gather(self._carry(reader, back), self._carry(there, writer))
        finally:
            for end in ends:
                end.close()
            await asyncio.gather(*[end.wait_closed() for end in ends], return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self._awake is not None:
                await self._awake.wait()
            writer.write(data)
        writer.close()


@asynccontextmanager
async def relay(dsn: str, directory: Path, *, awake: asyncio.Event | None = None) -> AsyncIterator[None]:
    """A socket in the directory that leads to the server of the DSN, which says nothing while it is not `awake`."""
    carrier = Carrier(dsn, awake=awake)
    server = await asyncio.start_unix_server(carrier, directory / ".s.PGSQL.5432")
    try:
        yield
    except BaseException:
        carrier.abandon()
        raise
    finally:
        await carrier.close(server)
