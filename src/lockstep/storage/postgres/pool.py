"""A pool of connections to PostgreSQL; `Database` (database.py) is how it is used.

A server's pool has a breaker: after several failed connection attempts in a row it considers PostgreSQL unavailable,
and from then on calls fail at once instead of making attempts of their own. One probe keeps trying, and closes the
breaker.

A PostgreSQL that hangs does not make attempts fail. So when a call waits, and PostgreSQL has sent nothing for half of
`breaker_silent_seconds`, the pool sends a probe. If there is no answer within the other half, PostgreSQL counts as
unavailable, and the calls that have waited for that long fail, including those that wait for a connection. A pool
without a breaker only lets them fail.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
import socket
import time
from asyncio import FIRST_COMPLETED
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import asyncpg

from lockstep.errors import InvalidRequest, Unavailable
from lockstep.storage.postgres import primaries
from lockstep.storage.postgres.failures import NotPrimary, caused_by, is_full, may_retry_connect, unreachable
from lockstep.storage.postgres.holders import Holders
from lockstep.storage.postgres.hosts import Host, abandon_all, database_of, find_primary, hosts_of
from lockstep.storage.postgres.session import ISOLATION, PLANNER, limits
from lockstep.storage.postgres.timelines import Link, Timeline, find_timeline, provide_ids

logger = logging.getLogger("lockstep.storage.pool")

Watcher = Callable[[bool], None]
"""Called with False when PostgreSQL is considered unavailable, and with True when it is back."""
Prepare = Callable[["asyncpg.Connection[Any]"], Awaitable[Any]]
"""Called with the first connection after an outage."""

_ADDRESS = "the address of the database is not like postgresql://user:password@host:port/database?option=value"
_BACKOFF_SECONDS_MIN = 0.01
_BACKOFF_SECONDS_MAX = 2.0
_CLOSE_TIMEOUT_SECONDS = 10.0
_TURNS = 20
_TURNS_SECONDS_MAX = 3600.0
"""Longer than the turns ever take: they end an attempt at a connection, not its own time-out."""
_EPOCHS = itertools.count(1)
"""A new pool does not continue an older one."""
_LOOKS = 8
"""Number of intervals into which the silent time is divided."""


class PoolWait(asyncio.Future["Link | None"]):
    """A call that waits for a connection, or for the right to make one, and since when."""

    def __init__(self, since: float) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.since = since


class Silent(TimeoutError):
    """PostgreSQL answers nothing. Never leaves the pool."""

    def __str__(self) -> str:
        return "it does not answer (breaker_silent_seconds)"


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    connections_max: int = 10
    connect_timeout_seconds: float = 10
    connect_attempts_max: int = 8
    primary_search_seconds: float = 2
    primary_check_seconds: float = 30
    statement_timeout_seconds: float = 30
    lock_timeout_seconds: float = 10
    lock_watch_seconds: float = 1
    idle_transaction_timeout_seconds: float = 5
    client_check_seconds: float = 2
    keepalive_seconds: float = 15
    transaction_attempts_max: int = 10
    passes_max: int = 2_000
    """Maximum number of expired messages that one transaction skips (sql/procedures/expiry.sql)."""
    breaker_failures_max: int = 0
    """0: without a breaker."""
    breaker_open_seconds: float = 1
    breaker_silent_seconds: float = 3


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """The state of a pool."""

    open: int
    idle: int
    connections_max: int
    waiters: int


class Pool:
    """Connections to one DSN: the one that was used last is used next, and none is made before it is needed.

    asyncpg's own pool makes a task and timers for each call; see docs/decisions/0008.
    """

    def __init__(self, dsn: str, settings: PoolSettings) -> None:
        self.users = 0
        self._dsn = dsn
        self._settings = settings
        self.epoch = next(_EPOCHS)
        """Of the connections in use; another one once the database is on another timeline."""
        self._timeline: Timeline | None = None
        self._risen = primaries.risen()
        """How many databases had moved to a later timeline when this pool last looked."""
        self._provided: Timeline | None = None
        """The timeline that is known not to give out any id twice."""
        self._idle: list[Link] = []
        self._used: dict[Link, float] = {}
        """Connections in use, and since when."""
        self._attempts: dict[asyncio.Future[Link], float] = {}
        """Attempts at connections for calls, and since when."""
        self._heard_at = 0.0
        """When PostgreSQL last answered anything."""
        self._open = 0
        self._waiting: deque[PoolWait] = deque()
        """Calls that wait for a connection; the first has waited longest."""
        self.watchers: set[Watcher] = set()
        self._failures = 0
        """Connection attempts that failed since something worked."""
        self._outage: Exception | None = None
        """Why PostgreSQL is considered unavailable."""
        self._probe: asyncio.Task[None] | None = None
        self._preparations: list[Prepare] = []
        self._time = asyncio.get_running_loop().time
        self._silence: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self.holders = Holders(self._ask_apart)
        self._watch_seconds = min(settings.lock_watch_seconds, settings.lock_timeout_seconds / 2)
        self._watching: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None
        self._hosts: list[Host] = []
        """Of an address with several; known once there was a connection."""
        self._searching: asyncio.TimerHandle | None = None
        self._search: asyncio.Task[None] | None = None
        self._apart: Link | None = None
        """The connection that looks for whom the others wait."""

    async def acquire(self) -> Link:
        while True:
            if self._risen != primaries.risen():
                self._leave_the_replaced()
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed() and connection.epoch == self.epoch:
                    return self._lend(connection)
                connection.terminate()
                self._open -= 1
            if self._outage is not None:
                raise caused_by(unreachable(self._outage), self._outage)
            if self._open < self._settings.connections_max:
                return self._lend(await self._connect())
            waited = await self._wait()
            if waited is not None:
                if waited.epoch == self.epoch:
                    return self._lend(waited)
                self.discard(waited)

    def release(self, connection: Link) -> None:
        """Take a connection back. A connection in the middle of a statement, or to a server that has been replaced, is
        closed."""
        if connection.is_closed() or connection.is_in_transaction() or connection.epoch != self.epoch:
            self.discard(connection)
            return
        now = self._time()
        self._forget(connection, now)
        self._failures, self._heard_at = 0, now
        if not self._hand_over(connection):
            self._idle.append(connection)

    def discard(self, connection: Link) -> None:
        """Close an unusable connection, at once."""
        connection.terminate()
        self._forget(connection, self._time())
        self._open -= 1
        self._hand_over(None)

    async def connect(self, *, application_name: str = "lockstep") -> Link:
        """One attempt at a connection to the primary, on the timeline of the other connections. If it is on a later
        timeline, the others are closed, and the caches filled from them are out of date. May raise NotPrimary."""
        connection = await connect(self._dsn, self._settings, application_name=application_name)
        self._hosts = hosts_of(self._dsn)
        try:
            self._follow(connection.timeline)
            connection.epoch = self.epoch
            await self._provide(connection)
            if connection.epoch != self.epoch:
                raise NotPrimary("another server took over in this moment")
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _follow(self, found: Timeline) -> None:
        primaries.note(self._dsn, found.database, found.number)
        known, self._timeline = self._timeline, found
        if known is None or known == found:
            return
        self._begin_epoch()
        extra = {"action": "database_replaced", "database": found.database, "timeline": found.number}
        logger.warning("database_replaced", extra={**extra, "timeline_before": known.number, "started": found.started})

    def _leave_the_replaced(self) -> None:
        """Another pool of this process, or a search, may have found that the server was replaced."""
        self._risen = primaries.risen()
        ours = self._timeline
        if ours is not None and ours.number < primaries.known(self._dsn).get(ours.database, 0):
            self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.epoch = next(_EPOCHS)
        for connection in self._idle:
            connection.terminate()

    async def _provide(self, connection: Link) -> None:
        """The first connections on a timeline ensure, before they are used, that ids are not reused."""
        if self._provided == connection.timeline:
            return
        async with asyncio.timeout(self._settings.connect_timeout_seconds):
            if await provide_ids(connection):
                self._provided = connection.timeline

    def counts(self) -> PoolCounts:
        return PoolCounts(self._open, len(self._idle), self._settings.connections_max, len(self._waiting))

    async def close(self) -> None:
        for timer in (self._silence, self._watching, self._searching):
            if timer is not None:
                timer.cancel()
        for task in (self._probe, self._asking, self._watch, self._search):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        self._close_apart()
        for connection in self._idle:
            try:
                await connection.close(timeout=_CLOSE_TIMEOUT_SECONDS)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()
        self._open -= len(self._idle)
        self._idle.clear()

    def _hand_over(self, connection: Link | None) -> bool:
        """Give a connection, or the right to make one, to the call that has waited longest."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(connection)
                return True
        return False

    async def _wait(self) -> Link | None:
        waiting = PoolWait(self._time())
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(self._settings.connect_timeout_seconds):
                return await waiting
        except Silent as error:
            raise caused_by(unreachable(error), error)  # noqa: B904
        except TimeoutError:
            self._give_back(waiting)
            if await self._is_found_away():
                return None
            raise self._exhausted() from None
        except asyncio.CancelledError:
            self._give_back(waiting)
            raise

    def _exhausted(self) -> Unavailable:
        error = Unavailable("no connection to the database became free in time (connect_timeout_seconds)")
        holder = self.holders.any()
        if holder is not None:
            error = Unavailable(f"{error.message}: calls wait because {holder.text()}", **holder.details())
        return error

    def _give_back(self, waiting: PoolWait) -> None:
        """Pass a connection that was handed to a caller who has just stopped waiting to the next caller."""
        if not waiting.done() or waiting.cancelled() or waiting.exception() is not None:
            return
        given = waiting.result()
        if given is None:
            self._hand_over(None)
        else:
            self.release(given)

    async def _connect(self) -> Link:
        """A new connection; retried while the server is starting, full or not there yet."""
        settings = self._settings
        self._open += 1
        try:
            for attempt in range(1, settings.connect_attempts_max + 1):
                try:
                    connection = await self._attempted()
                except Exception as error:
                    self._count_failure(error)
                    hopeless = not may_retry_connect(error) or self._outage is not None or isinstance(error, Silent)
                    if hopeless or attempt == settings.connect_attempts_max:
                        raise caused_by(unreachable(error), error)  # noqa: B904
                    logger.info("connect_retried", extra={"action": "connect_retried", "attempt": attempt})
                else:
                    self._hear()
                    return connection
                await asyncio.sleep(backoff_seconds(attempt + 3))
            raise AssertionError("connect_attempts_max is at least 1")
        except BaseException:
            self._open -= 1
            self._hand_over(None)
            raise

    async def _attempted(self) -> Link:
        """One attempt, which ends if PostgreSQL is found to be silent meanwhile."""
        attempt = asyncio.ensure_future(self.connect())
        self._attempts[attempt] = self._time()
        self._look_later()
        try:
            await asyncio.wait((attempt,))
            if attempt.cancelled():
                raise Silent
            return attempt.result()
        except asyncio.CancelledError:
            await _abandon(attempt)
            raise
        finally:
            self._attempts.pop(attempt, None)

    def _count_failure(self, error: Exception) -> None:
        """A server without a free connection is reachable, so this does not count as a failure."""
        failures_max = self._settings.breaker_failures_max
        if failures_max == 0 or is_full(error):
            return
        self._failures += 1
        if self._failures >= failures_max:
            self.take_for_away(error)

    @property
    def is_away(self) -> bool:
        return self._outage is not None

    def take_for_away(self, error: Exception, *, prepare: Prepare | None = None) -> None:
        """Let calls fail at once until there is a connection, and `prepare` is done with it."""
        if prepare is not None:
            self._preparations.append(prepare)
        if self._outage is not None:
            return
        self._know_why(error)
        self._probe = asyncio.create_task(self._probe_until_back(), name="lockstep-probe", context=Context())
        self._tell_watchers(False)
        while self._hand_over(None):
            pass  # the waiting callers find out by themselves

    def _know_why(self, error: Exception) -> None:
        """Logged once, and again when the reason changes."""
        before, self._outage = self._outage, error
        if before is None or str(before) != str(error):
            logger.error("database_away", extra={"action": "database_away", "error": str(unreachable(error))})

    async def _probe_until_back(self) -> None:
        began = time.monotonic()
        connection = None
        while connection is None:
            await asyncio.sleep(self._settings.breaker_open_seconds * random.uniform(0.8, 1.2))
            try:
                connection = await self._prepared()
            except Exception as error:
                self._know_why(error)
        self._outage = None
        self._open += 1
        self.release(connection)
        seconds = round(time.monotonic() - began, 3)
        logger.warning("database_back", extra={"action": "database_back", "seconds": seconds})
        self._tell_watchers(True)

    async def _prepared(self) -> Link:
        connection = await self.connect()
        try:
            while self._preparations:
                await self._preparations[0](connection)
                self._preparations.pop(0)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _tell_watchers(self, there: bool) -> None:
        for watcher in list(self.watchers):
            watcher(there)

    # Silence

    def _lend(self, connection: Link) -> Link:
        """Note when a connection came into use. One timer watches all of them, so a call costs none."""
        self._used[connection] = self._time()
        if self._silence is None:
            self._look_later()
        if self._watching is None:
            self._watch_later()
        if self._hosts and self._searching is None:
            self._search_later()
        return connection

    def _hear(self) -> None:
        self._failures = 0
        self._heard_at = self._time()

    def _look_later(self) -> None:
        if self._silence is None:
            self._look_in(self._settings.breaker_silent_seconds / 2)

    def _look_in(self, seconds: float) -> None:
        self._silence = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Probe PostgreSQL when a call waits and nothing was received for half of the time."""
        self._silence = None
        if not self._used and not self._attempts:
            return
        silent_since = max(self._heard_at, min((*self._used.values(), *self._attempts.values())))
        left = self._settings.breaker_silent_seconds / 2 - (self._time() - silent_since)
        if left <= 0:
            self._find_out()
        self._look_in(max(left, self._settings.breaker_silent_seconds / _LOOKS))

    async def _is_found_away(self) -> bool:
        """Whether PostgreSQL is unavailable; waits for the result if a check is under way."""
        if self._asking is not None:
            await asyncio.wait((self._asking,))
        return self.is_away

    def _find_out(self) -> None:
        if self.is_away:
            self._drop_silent()
        elif self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="lockstep-silence")

    async def _ask(self) -> None:
        """A call has no answer yet. It may be long, or wait for a lock, so check whether PostgreSQL answers at all."""
        while not self.is_away:
            try:
                await self._answer()
            except Silent as error:
                if self._settings.breaker_failures_max:
                    self.take_for_away(error)
                break
            except Exception as error:
                if not isinstance(error, OSError) or not self._settings.breaker_failures_max:
                    return  # it does, if only to refuse us
                self._count_failure(error)
                await asyncio.sleep(self._settings.breaker_open_seconds)
            else:
                return
        self._drop_silent()

    async def _answer(self) -> None:
        """Return once PostgreSQL answers anything: a call, a new connection, or an idle connection, for which it need
        not start a process. Raises Silent if it does not answer in time, and connection errors. Time is counted in
        turns of the event loop, because a process that is late itself must not consider PostgreSQL silent."""
        asked_at = self._heard_at
        patient = replace(self._settings, connect_timeout_seconds=_TURNS_SECONDS_MAX)
        attempt = asyncio.ensure_future(connect(self._dsn, patient))
        idle = self._idle.pop() if self._idle else None
        answer = None if idle is None else asyncio.ensure_future(self._answer_on(idle))
        waited_for = {one for one in (attempt, answer) if one is not None}
        try:
            for _ in range(_TURNS):
                seconds = self._settings.breaker_silent_seconds / 2 / _TURNS
                done, waited_for = await asyncio.wait(waited_for, timeout=seconds, return_when=FIRST_COMPLETED)
                if attempt in done:
                    attempt.result().terminate()
                    self._hear()
                if self._heard_at != asked_at:
                    return
            raise Silent
        finally:
            if idle is not None and answer is not None:
                if not answer.done():
                    idle.terminate()
                await asyncio.wait((answer,))
            await _abandon(attempt)

    async def _answer_on(self, connection: Link) -> None:
        try:
            await connection.execute("select 1")
        except Exception:
            self.discard(connection)
        else:
            self.release(connection)

    def _drop_silent(self) -> None:
        """Close connections to a server that hangs: they never answer, and their callers must be notified."""
        for connection in self._idle:
            connection.terminate()
        for attempt in self._attempts:
            attempt.cancel()
        before = self._time() - self._settings.breaker_silent_seconds * (1 - 1 / _LOOKS)
        for waiting in self._waiting:
            if waiting.since <= before and not waiting.done():
                waiting.set_exception(Silent())
        for connection in [connection for connection, since in self._used.items() if since <= before]:
            connection.terminate()

    # Other primaries

    def _search_later(self) -> None:
        """While the pool is in use, look at all hosts of the address from time to time."""
        seconds = self._settings.primary_check_seconds
        self._searching = asyncio.get_running_loop().call_later(seconds, self._search_hosts)

    def _search_hosts(self) -> None:
        self._searching = None
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._look_at_hosts(), name="lockstep-primaries", context=Context())

    async def _look_at_hosts(self) -> None:
        """Find out whether a server on a later timeline has taken over, while ours still takes changes."""
        connect_to = partial(_connect_to, self._dsn, self._settings, "lockstep-primaries")
        attempts: set[asyncio.Future[Link]] = {asyncio.ensure_future(connect_to(*host)) for host in self._hosts}
        try:
            await asyncio.wait(attempts)  # each notes what it finds
        finally:
            await abandon_all(attempts, Link.terminate)
        if self._risen != primaries.risen():
            self._leave_the_replaced()

    # Locks

    def _forget(self, connection: Link, now: float) -> None:
        since = self._used.pop(connection, None)
        if since is not None and now - since >= self._watch_seconds:
            self.holders.forget(connection.pid)

    def _watch_later(self) -> None:
        self._watching = asyncio.get_running_loop().call_later(self._watch_seconds, self._watch_locks)

    def _watch_locks(self) -> None:
        """Find out which sessions the long calls wait for. Without long calls, this runs no query."""
        self._watching = None
        before = self._time() - self._watch_seconds
        waiters = [one.pid for one, since in self._used.items() if since <= before]
        if waiters and not self.is_away and (self._watch is None or self._watch.done()):
            self._watch = self.holders.look(waiters)
        if self._used:
            self._watch_later()
        elif self._watch is None or self._watch.done():
            self._close_apart()

    async def _ask_apart(self, query: str, *args: Any) -> list[Any]:
        """Query on a connection that no call uses, because all calls may wait for locks. The query itself takes no
        locks."""
        if self._apart is not None and self._apart.epoch != self.epoch:
            self._close_apart()
        if self._apart is None or self._apart.is_closed():
            self._apart = await self.connect(application_name="lockstep-locks")
            await self._apart.execute("set lock_timeout = '50ms'")
        rows: list[Any] = await self._apart.fetch(query, *args, timeout=self._settings.connect_timeout_seconds)
        return rows

    def _close_apart(self) -> None:
        if self._apart is not None:
            self._apart.terminate()
            self._apart = None


async def _abandon(attempt: asyncio.Future[Link]) -> None:
    """Give up an attempt to connect, which may just have succeeded."""
    attempt.cancel()
    await asyncio.wait((attempt,))
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().terminate()


async def connect(dsn: str, settings: PoolSettings, *, application_name: str = "lockstep") -> Link:
    """One attempt at a connection to the primary with the highest timeline, on each host of the address. Raises
    InvalidRequest for an invalid address, NotPrimary."""
    attempt = partial(_connect_to, dsn, settings, application_name)
    try:
        hosts = hosts_of(dsn)
        if not hosts:
            return await attempt()
        known = primaries.known(dsn)
        return await find_primary(
            hosts,
            lambda host: attempt(*host),
            number=lambda link: link.timeline.number,
            is_newest=lambda link: link.timeline.number >= known.get(link.timeline.database, math.inf),
            search_seconds=settings.primary_search_seconds,
            abandon=Link.terminate,
        )
    except ValueError as error:
        # Without the error's text, which contains parts of the address, and so perhaps of a password.
        raise InvalidRequest(_ADDRESS) from error


async def _connect_to(
    dsn: str, settings: PoolSettings, application_name: str, host: str | None = None, port: int | None = None
) -> Link:
    try:
        connection: Link = await asyncpg.connect(
            dsn,
            host=host,
            port=port,
            database=database_of(dsn),
            timeout=settings.connect_timeout_seconds,
            connection_class=Link,
            # No command_timeout: the server ends a slow statement itself, and says so.
            server_settings={
                "application_name": application_name,
                **limits(
                    statement_timeout_seconds=settings.statement_timeout_seconds,
                    lock_timeout_seconds=settings.lock_timeout_seconds,
                    idle_transaction_timeout_seconds=settings.idle_transaction_timeout_seconds,
                    client_check_seconds=settings.client_check_seconds,
                    keepalive_seconds=settings.keepalive_seconds,
                ),
                "lockstep.passes_left": str(settings.passes_max),
                **ISOLATION,
                **PLANNER,
            },
        )
    except asyncpg.TargetServerAttributeNotMatched as error:
        raise NotPrimary(f"the server is not of the kind that the address requires: {error}") from error
    connection.pid = connection.get_server_pid()
    _end_when_silent(connection, settings.connect_timeout_seconds)
    try:
        async with asyncio.timeout(settings.connect_timeout_seconds):
            found = connection.timeline = await find_timeline(connection)
        primaries.note(dsn, found.database, found.number)
    except BaseException:
        connection.terminate()
        raise
    return connection


def _end_when_silent(connection: asyncpg.Connection[Any], seconds: float) -> None:
    """A failed machine sends nothing: without this, a call in flight would wait for many minutes."""
    transport = getattr(connection, "_transport", None)
    found = None if transport is None else transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", max(int(seconds), 1)),
        ("TCP_KEEPINTVL", max(int(seconds / 3), 1)),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", int(seconds * 1000)),
    ):
        if hasattr(socket, name):  # not everywhere
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def backoff_seconds(attempt: int) -> float:
    """Exponential, with full jitter, so that callers that collided do not collide again."""
    return random.uniform(0, min(_BACKOFF_SECONDS_MIN * 2**attempt, _BACKOFF_SECONDS_MAX))
