"""The database as the store uses it: pools that are opened on first use, shared per DSN, and closed by their last user.

`Database` is one user. It runs single calls and transactions with time-outs, retries conflicts, translates errors, and
calls a hook for every query.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import asyncpg

from lockstep.core.statistics import QueryHook
from lockstep.errors import InvalidRequest, Unavailable
from lockstep.storage.postgres.calls import Call
from lockstep.storage.postgres.failures import (
    StaleName,
    caused_by,
    has_waited,
    is_retryable,
    lost,
    translate,
    unreachable,
    was_not_sent,
)
from lockstep.storage.postgres.holders import Holder
from lockstep.storage.postgres.pool import Pool, PoolCounts, PoolSettings, Prepare, Watcher, backoff_seconds
from lockstep.storage.postgres.timelines import Link, check_span

logger = logging.getLogger("lockstep.storage.pool")

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

ISOLATION_LEVELS = ("read_committed", "repeatable_read", "serializable")

# A pool belongs to the event loop that created it, so the loop is part of the key.
_shared: dict[tuple[str, PoolSettings, asyncio.AbstractEventLoop], Pool] = {}


class Database:
    """One user of the shared pool of a DSN."""

    def __init__(self, dsn: str, settings: PoolSettings | None = None, *, on_query: QueryHook | None = None) -> None:
        self._dsn = dsn
        self._settings = settings or PoolSettings()
        self._on_query = on_query
        self._watcher: Watcher | None = None
        self._pool: Pool | None = None
        self._key: tuple[str, PoolSettings, asyncio.AbstractEventLoop] | None = None
        self._closed = False

    def reopen(self) -> None:
        """Make a closed database usable again; connections are made when they are needed."""
        self._closed = False

    async def close(self) -> None:
        """Stop using the pool; the last user closes it."""
        self._closed = True
        pool, key = self._pool, self._key
        self._pool = self._key = None
        if pool is None or key is None:
            return
        pool.users -= 1
        pool.watchers.discard(self._watcher or _nobody)
        if pool.users == 0:
            _shared.pop(key, None)
            await pool.close()

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` whenever PostgreSQL becomes unavailable or is back; also at once, if it is unavailable now."""
        self._watcher = watcher
        pool = self._join()
        pool.watchers.add(watcher)
        if pool.is_away:
            watcher(False)

    def take_for_away(self, error: Exception, *, prepare: Prepare) -> None:
        """Let calls fail at once until PostgreSQL is reachable and `prepare` has run on a connection to it."""
        self._join().take_for_away(error, prepare=prepare)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection[Any]]:
        """A connection of the pool. Raises Unavailable."""
        pool = self._join()
        connection = await pool.acquire()
        try:
            yield connection
        except asyncio.CancelledError:
            pool.discard(connection)  # the server may still be working on the cancelled call
            raise
        except BaseException:
            pool.release(connection)
            raise
        else:
            pool.release(connection)

    @property
    def counts(self) -> PoolCounts:
        """The connections of the pool, which may have other users."""
        return PoolCounts(0, 0, self._settings.connections_max, 0) if self._pool is None else self._pool.counts()

    @property
    def epoch(self) -> int:
        """Changes when the database moves to another timeline, which invalidates the caches."""
        return (self._pool or self._join()).epoch

    async def connect_apart(self, application_name: str) -> Link:
        """A connection outside of the pool: the caller closes it."""
        return await self._join().connect(application_name=application_name)

    def fetch(self, name: str, query: str, *args: Any) -> Coroutine[Any, Any, list[Any]]:
        """The rows of one query in its own transaction; retried if PostgreSQL's error allows it."""
        return self._attempts(self.on, name, query, *args)

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

    async def call(self, call: Call[R], connection: asyncpg.Connection[Any] | None = None) -> list[R]:
        """The records of a call, in its own transaction, or on a connection."""
        if connection is None:
            given = await self._attempts(self.on, call.name, call.sql, *call.args)
        else:
            given = await self.on(connection, call.name, call.sql, *call.args)
        return given if call.record is None else call.rows(given)

    async def value(self, call: Call[R], connection: asyncpg.Connection[Any] | None = None) -> R:
        """The only record of a call."""
        return (await self.call(call, connection))[0]

    async def transaction(
        self,
        work: Callable[[asyncpg.Connection[Any]], Awaitable[T]],
        *,
        isolation: str = "read_committed",
        statement_timeout_seconds: float | None = None,
        lock_timeout_seconds: float | None = None,
    ) -> T:
        """Run `work` in one transaction. It runs again after a conflict with other transactions, so it must be
        repeatable."""
        if isolation not in ISOLATION_LEVELS:
            raise InvalidRequest(f"isolation must be one of {', '.join(ISOLATION_LEVELS)}, not {isolation!r}")

        async def attempt(connection: asyncpg.Connection[Any]) -> T:
            async with connection.transaction(isolation=isolation):
                await _set_timeouts(connection, statement_timeout_seconds, lock_timeout_seconds)
                return await work(connection)

        return await self._attempts(attempt)

    async def _attempts(
        self, work: Callable[Concatenate[asyncpg.Connection[Any], P], Awaitable[T]], *args: P.args, **named: P.kwargs
    ) -> T:
        # Repeats the body of connection() without a context manager, because every call passes here.
        for attempt in range(1, self._settings.transaction_attempts_max + 1):
            pool = self._pool or self._join()
            connection = await pool.acquire()
            try:
                check_span(connection.epoch)
                result = await work(connection, *args, **named)
            except asyncio.CancelledError:
                pool.discard(connection)
                raise
            except Exception as error:
                if lost(error, connection):
                    pool.discard(connection)
                    if was_not_sent(error) and attempt < self._settings.transaction_attempts_max:
                        continue  # on another connection: the server has ended this one before the call
                    raise caused_by(unreachable(error, maybe_applied=not was_not_sent(error)), error)  # noqa: B904
                try:
                    holder = await pool.holders.of(connection.pid) if has_waited(error) else None
                finally:
                    pool.release(connection)
                self._raise_unless_retryable(error, attempt, holder)
            else:
                pool.release(connection)
                return result
            logger.info("transaction_retried", extra={"action": "transaction_retried", "attempt": attempt})
            await asyncio.sleep(backoff_seconds(attempt))
        raise AssertionError("transaction_attempts_max is at least 1")

    def _raise_unless_retryable(self, error: Exception, attempt: int, holder: Holder | None) -> None:
        if isinstance(error, StaleName):
            raise error
        if not is_retryable(error) or attempt == self._settings.transaction_attempts_max:
            translated = translate(error)
            if holder is not None:
                holder.explain(translated)
            raise caused_by(translated, error)

    def _join(self) -> Pool:
        """The pool of this DSN, settings and event loop; made by its first user."""
        if self._closed:
            raise Unavailable("the store is closed")
        if self._pool is None:
            self._key = (self._dsn, self._settings, asyncio.get_running_loop())
            self._pool = _shared.setdefault(self._key, Pool(self._dsn, self._settings))
            self._pool.users += 1
            if self._watcher is not None:
                self._pool.watchers.add(self._watcher)
        return self._pool


def _nobody(_there: bool) -> None:
    """Watches nothing."""


async def _set_timeouts(connection: asyncpg.Connection[Any], statement: float | None, lock: float | None) -> None:
    for name, seconds in (("statement_timeout", statement), ("lock_timeout", lock)):
        if seconds is not None:
            await connection.execute(f"set local {name} = {int(seconds * 1000)}")
