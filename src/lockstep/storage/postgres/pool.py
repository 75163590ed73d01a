"""Connections: pools that are opened on first use, shared per DSN, and closed by their last user.

`Database` is one user. It runs single calls and transactions with time-outs, retries what PostgreSQL says may be
retried, translates errors, and tells a hook about every query.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import asyncpg

from lockstep.errors import InvalidRequest, Unavailable
from lockstep.storage.postgres.failures import StaleName, is_retryable, may_retry_connect, translate

logger = logging.getLogger("lockstep.storage.pool")

T = TypeVar("T")
QueryHook = Callable[[str, float, BaseException | None], None]
"""Sees the name of every query, how many seconds it took, and the error if it failed."""

ISOLATION_LEVELS = ("read_committed", "repeatable_read", "serializable")
# Our statements have one right plan, through indexes, whatever the values are and however little the statistics know
# of a new table. Planning a pop takes three times as long as running it. See docs/decisions/0006.
_PLANNER = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
_BACKOFF_SECONDS_MIN = 0.01
_BACKOFF_SECONDS_MAX = 2.0


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    connections_min: int = 0
    connections_max: int = 10
    connect_timeout_seconds: float = 10
    connect_attempts_max: int = 8
    statement_timeout_seconds: float = 30
    lock_timeout_seconds: float = 10
    transaction_attempts_max: int = 10


@dataclass
class _SharedPool:
    pool: asyncpg.Pool[Any] | None = None
    users: int = 0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)


# A pool belongs to the event loop that made it, so the loop is part of the key.
_shared: dict[tuple[str, PoolSettings, asyncio.AbstractEventLoop], _SharedPool] = {}


def backoff_seconds(attempt: int) -> float:
    """Exponential, with full jitter, so that those who collided do not collide again."""
    return random.uniform(0, min(_BACKOFF_SECONDS_MIN * 2**attempt, _BACKOFF_SECONDS_MAX))


class Database:
    """One user of the shared pool of a DSN."""

    def __init__(self, dsn: str, settings: PoolSettings | None = None, *, on_query: QueryHook | None = None) -> None:
        self._dsn = dsn
        self._settings = settings or PoolSettings()
        self._on_query = on_query
        self._entry: _SharedPool | None = None
        self._key: tuple[str, PoolSettings, asyncio.AbstractEventLoop] | None = None
        self._closed = False

    def reopen(self) -> None:
        """Make a closed database usable again; the pool is opened on first use."""
        self._closed = False

    async def close(self) -> None:
        """Stop using the pool; the last user closes it."""
        self._closed = True
        entry, key = self._entry, self._key
        self._entry = self._key = None
        if entry is None or key is None:
            return
        entry.users -= 1
        if entry.users == 0:
            _shared.pop(key, None)
            if entry.pool is not None:
                await _close_pool(entry.pool)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection[Any]]:
        """A connection from the pool. Raises Unavailable."""
        pool = await self._pool()
        try:
            connection = await pool.acquire(timeout=self._settings.connect_timeout_seconds)
        except BaseException as error:
            raise translate(error) from error
        try:
            yield connection
        finally:
            await pool.release(connection)

    async def fetch(self, name: str, query: str, *args: Any) -> list[Any]:
        """The rows of one query, which is a transaction of its own; retried if PostgreSQL says it may be."""

        async def work(connection: asyncpg.Connection[Any]) -> list[Any]:
            return await self.on(connection, name, query, *args)

        return await self._attempts(work)

    async def on(self, connection: asyncpg.Connection[Any], name: str, query: str, *args: Any) -> list[Any]:
        """The rows of one query on this connection."""
        if self._on_query is None:
            return await connection.fetch(query, *args)  # type: ignore[no-any-return]
        began = time.perf_counter()
        failure: BaseException | None = None
        try:
            return await connection.fetch(query, *args)  # type: ignore[no-any-return]
        except BaseException as error:
            failure = error
            raise
        finally:
            self._on_query(name, time.perf_counter() - began, failure)

    async def transaction(
        self,
        work: Callable[[asyncpg.Connection[Any]], Awaitable[T]],
        *,
        isolation: str = "read_committed",
        statement_timeout_seconds: float | None = None,
        lock_timeout_seconds: float | None = None,
    ) -> T:
        """Run `work` in one transaction. It is run again if it conflicted with others, so it must be repeatable."""
        if isolation not in ISOLATION_LEVELS:
            raise InvalidRequest(f"isolation must be one of {', '.join(ISOLATION_LEVELS)}, not {isolation!r}")

        async def attempt(connection: asyncpg.Connection[Any]) -> T:
            async with connection.transaction(isolation=isolation):
                await _set_timeouts(connection, statement_timeout_seconds, lock_timeout_seconds)
                return await work(connection)

        return await self._attempts(attempt)

    async def _attempts(self, work: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
        for attempt in range(1, self._settings.transaction_attempts_max + 1):
            async with self.connection() as connection:
                try:
                    return await work(connection)
                except (StaleName, asyncio.CancelledError):
                    raise
                except Exception as error:
                    if not is_retryable(error) or attempt == self._settings.transaction_attempts_max:
                        raise translate(error) from error
                    logger.info("transaction_retried", extra={"action": "transaction_retried", "attempt": attempt})
            await asyncio.sleep(backoff_seconds(attempt))
        raise AssertionError("transaction_attempts_max is at least 1")

    async def _pool(self) -> asyncpg.Pool[Any]:
        if self._closed:
            raise Unavailable("the store is closed")
        entry = self._entry
        if entry is None:
            entry = self._join()
        if entry.pool is None:
            async with entry.opening:
                if entry.pool is None:
                    entry.pool = await self._open()
        return entry.pool

    def _join(self) -> _SharedPool:
        self._key = (self._dsn, self._settings, asyncio.get_running_loop())
        self._entry = _shared.setdefault(self._key, _SharedPool())
        self._entry.users += 1
        return self._entry

    async def _open(self) -> asyncpg.Pool[Any]:
        settings = self._settings
        for attempt in range(1, settings.connect_attempts_max + 1):
            pool = asyncpg.create_pool(
                self._dsn,
                min_size=settings.connections_min,
                max_size=settings.connections_max,
                timeout=settings.connect_timeout_seconds,
                reset=_reset,
                # No command_timeout: the server ends a slow statement itself, and says so.
                server_settings={
                    "application_name": "lockstep",
                    "statement_timeout": str(int(settings.statement_timeout_seconds * 1000)),
                    "lock_timeout": str(int(settings.lock_timeout_seconds * 1000)),
                    **_PLANNER,
                },
            )
            try:
                await pool
                async with pool.acquire(timeout=settings.connect_timeout_seconds):
                    return pool
            except Exception as error:
                pool.terminate()
                if not may_retry_connect(error) or attempt == settings.connect_attempts_max:
                    raise translate(error) from error
                logger.info("connect_retried", extra={"action": "connect_retried", "attempt": attempt})
            await asyncio.sleep(backoff_seconds(attempt + 3))
        raise AssertionError("connect_attempts_max is at least 1")


async def _reset(connection: asyncpg.Connection[Any]) -> None:
    """Nothing to reset after a call: we set nothing for a session. asyncpg's own reset is a round trip per call."""
    if connection.is_in_transaction():
        await connection.reset()


async def _close_pool(pool: asyncpg.Pool[Any]) -> None:
    try:
        await asyncio.wait_for(pool.close(), timeout=10)
    except TimeoutError:
        pool.terminate()


async def _set_timeouts(connection: asyncpg.Connection[Any], statement: float | None, lock: float | None) -> None:
    for name, seconds in (("statement_timeout", statement), ("lock_timeout", lock)):
        if seconds is not None:
            await connection.execute(f"set local {name} = {int(seconds * 1000)}")
