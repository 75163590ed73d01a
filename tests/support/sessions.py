"""Real sessions whose steps a test spells out: who begins, who waits for whom, who commits.

An `Actor` is a store on one connection of its own. Outside of `begin` each of its calls is a transaction, as in
production; after `begin` all of them are one, which stays open until the test says so. Nothing is retried, so a
deadlock that would be hidden by a retry is an error here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

import asyncpg

from lockstep.storage.postgres.database import Database
from lockstep.storage.postgres.holders import Holders
from lockstep.storage.postgres.pool import PoolSettings
from lockstep.storage.postgres.store import PostgresStore

T = TypeVar("T")

_WAIT_SECONDS_MAX = 10

_WAITING = "select pg_blocking_pids(pid) from pg_stat_activity where pid = $1 and wait_event_type = 'Lock'"


class OneConnection(Database):
    """A database that is one connection, in a transaction or not, and that tries everything once."""

    def __init__(self, dsn: str, connection: asyncpg.Connection[Any]) -> None:
        super().__init__(dsn, PoolSettings(transaction_attempts_max=1))
        self._connection = connection
        self.holders = Holders(self.fetch)

    def _join(self) -> Any:
        return self

    @property
    def epoch(self) -> int:
        return self._connection.epoch  # type: ignore[attr-defined, no-any-return]

    async def acquire(self) -> asyncpg.Connection[Any]:
        return self._connection

    def release(self, connection: asyncpg.Connection[Any]) -> None:
        """It stays with the test."""

    discard = release


class Actor:
    """One session: a store on a connection that the test knows."""

    def __init__(self, dsn: str, connection: asyncpg.Connection[Any], clock: Callable[[], datetime] | None) -> None:
        self.connection = connection
        self.pid: int = connection.get_server_pid()
        self.store = PostgresStore(dsn, clock=clock)
        self._pool = self.store.database
        """For what the store tells other processes in the background."""
        self.store.context.database = OneConnection(dsn, connection)
        self._transaction: Any = None

    async def close(self) -> None:
        await self.store.context.signals.close()
        await self._pool.close()

    async def begin(self, isolation: str = "read_committed") -> None:
        self._transaction = self.connection.transaction(isolation=isolation)
        await self._transaction.start()

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()

    async def sql(self, query: str, *args: Any) -> Any:
        """The first column of a query's first row."""
        return await self.connection.fetchval(query, *args)


class Stage:
    """Actors, and an observer who sees which of them wait."""

    def __init__(self, dsn: str, *, clock: Callable[[], datetime] | None = None) -> None:
        self.dsn = dsn
        self._clock = clock
        # Connections as production makes them, with their settings for the planner.
        settings = PoolSettings(connections_max=64, statement_timeout_seconds=15, idle_transaction_timeout_seconds=3600)
        self._database = Database(dsn, settings)
        self._open = AsyncExitStack()
        self._tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Stage:
        self._open.push_async_callback(self._database.close)
        self.observer = await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._open.aclose()

    async def actor(self, *, clock: Callable[[], datetime] | None = None) -> Actor:
        actor = Actor(self.dsn, await self._connect(), clock or self._clock)
        self._open.push_async_callback(actor.close)
        return actor

    async def actors(self, count: int) -> list[Actor]:
        return [await self.actor() for _ in range(count)]

    def start(self, step: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a step that is expected to wait for somebody."""
        task = asyncio.ensure_future(step)
        self._tasks.append(task)
        return task

    async def blocked(self, step: Coroutine[Any, Any, T], actor: Actor, by: Actor) -> asyncio.Task[T]:
        """Begin a step of an actor; return once it waits for a lock that the other one holds."""
        task = self.start(step)
        async with asyncio.timeout(_WAIT_SECONDS_MAX):
            while True:
                assert not task.done(), f"the step did not wait, but ended: {task}"
                if by.pid in (await self.observer.fetchval(_WAITING, actor.pid) or ()):
                    return task

    async def until_blocked(self, pid: int) -> None:
        """Return once the backend waits for a lock."""
        async with asyncio.timeout(_WAIT_SECONDS_MAX):
            while not await self.observer.fetchval(_WAITING, pid):
                pass

    async def until_done_or_blocked(self, task: asyncio.Task[Any], actor: Actor) -> None:
        """Return once the step has ended, or waits for a lock."""
        async with asyncio.timeout(_WAIT_SECONDS_MAX):
            while not task.done() and not await self.observer.fetchval(_WAITING, actor.pid):
                pass

    async def _connect(self) -> asyncpg.Connection[Any]:
        return await self._open.enter_async_context(self._database.connection())
