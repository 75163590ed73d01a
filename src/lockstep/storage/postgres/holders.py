"""Finds the session that holds the lock a call waits for.

PostgreSQL says only that a lock could not be acquired in time. While a call waits, another connection can see which
session holds the lock. So a pool checks its long calls (`lock_watch_seconds`) and keeps what it finds until they end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import asyncpg

from lockstep.errors import Unavailable
from lockstep.storage.postgres import sql

logger = logging.getLogger("lockstep.storage.pool")

_STATEMENT_LENGTH_MAX = 200
_ANSWER_SECONDS_MAX = 0.2
"""How much later than its lock_timeout_seconds a call fails, to say who holds the lock."""
_HIDDEN = "<insufficient privilege>"
_FAILURES = (OSError, Unavailable, asyncpg.PostgresError, asyncpg.InterfaceError)


@dataclass(frozen=True, slots=True)
class Holder:
    """A session that holds a lock, as far as our role may see it."""

    pid: int
    user: str | None
    application: str | None
    state: str | None
    seconds: float | None
    """How long its transaction has been open."""
    statement: str | None
    held: str

    def text(self) -> str:
        if not self.pid:
            return f"a prepared transaction (pg_prepared_xacts) holds {self.held}"
        user = f" of user {self.user}" if self.user else ""
        application = f" ({self.application})" if self.application else ""
        return f"session {self.pid}{user}{application} holds {self.held}{self._doing()}"

    def _doing(self) -> str:
        parts = []
        if self.seconds is not None:
            parts.append(f"its transaction has been open for {self.seconds:.1f} s")
        if self.state:
            parts.append(f"it is {self.state}")
        if self.statement:
            parts.append(f"its last statement is {self.statement!r}")
        return "".join(f"; {part}" for part in parts)

    def explain(self, error: BaseException) -> BaseException:
        """Name the holder in the error of the call that waited for it."""
        if isinstance(error, Unavailable):
            error.message = f"{error.message}: {self.text()}"
            error.args = (error.message,)
            error.details |= self.details()
        return error

    def details(self) -> dict[str, Any]:
        found = {
            "held": self.held,
            "holder_pid": self.pid,
            "holder_user": self.user,
            "holder_application": self.application,
            "holder_state": self.state,
            "holder_seconds": self.seconds,
            "holder_statement": self.statement,
        }
        return {name: value for name, value in found.items() if value is not None}


class _Found(NamedTuple):
    """A row of `lock_holders`."""

    waiter: int
    pid: int
    user: str | None
    application: str | None
    state: str | None
    seconds: float | None
    statement: str | None
    kind: str | None
    table: str | None
    place: str | None


class Holders:
    """The known lock holders, by the process id of the waiting session."""

    def __init__(self, ask: Callable[..., Awaitable[list[Any]]]) -> None:
        self._ask = ask
        self._found: dict[int, Holder] = {}
        self._told: set[int] = set()
        self._asked: set[int] = set()
        """The sessions of the current query whose calls have not ended."""
        self._look: asyncio.Task[None] | None = None

    def look(self, waiters: Iterable[int]) -> asyncio.Task[None]:
        """Find out which sessions these sessions wait for. Anything that cannot be found out now stays as it was."""
        self._asked = set(waiters)
        self._look = asyncio.create_task(self._find(list(self._asked)), name="lockstep-locks")
        return self._look

    async def _find(self, waiters: Sequence[int]) -> None:
        try:
            rows = [_Found(*row) for row in await self._ask(sql.query("lock_holders"), waiters)]
        except _FAILURES:
            return
        names = await self._names([row for row in rows if row.kind == "tuple"])
        # A session whose call has ended may wait for another one by now.
        rows = [row for row in rows if row.waiter in self._asked]
        for row in rows:
            self._found[row.waiter] = _holder(row, names.get((row.table, row.place)))
        self._tell({row.pid: self._found[row.waiter] for row in rows})

    async def _names(self, rows: Sequence[_Found]) -> dict[tuple[str | None, str | None], tuple[str | None, ...]]:
        """The queue, partition and group of locked rows; without names if our tables are locked themselves."""
        places = list(dict.fromkeys((row.table, row.place) for row in rows))
        if not places:
            return {}
        tables, tuples = [table for table, _ in places], [place for _, place in places]
        try:
            found = await self._ask(sql.query("lock_names"), tables, tuples)
        except _FAILURES:
            return {}
        return {places[number - 1]: tuple(names) for number, *names in found}

    def _tell(self, holding: Mapping[int, Holder]) -> None:
        """Log each holder once, for as long as a session waits for it."""
        for pid in holding.keys() - self._told:
            logger.warning("lock_held", extra={"action": "lock_held", **holding[pid].details()})
        self._told |= holding.keys()

    def forget(self, waiter: int) -> None:
        self._asked.discard(waiter)
        self._found.pop(waiter, None)
        if not self._found:
            self._told.clear()

    async def of(self, waiter: int) -> Holder | None:
        """The holder that blocked a call which has just given up. The query for it may still be running."""
        if waiter not in self._found and waiter in self._asked and self._look is not None:
            await asyncio.wait((self._look,), timeout=_ANSWER_SECONDS_MAX)
        return self._found.get(waiter)

    def any(self) -> Holder | None:
        """Any session that calls wait for."""
        return next(iter(self._found.values()), None)


def _holder(row: _Found, names: tuple[str | None, ...] | None) -> Holder:
    statement = None if row.statement == _HIDDEN else row.statement
    return Holder(
        pid=row.pid,
        user=row.user,
        application=row.application or None,
        state=row.state,
        seconds=None if row.seconds is None else round(row.seconds, 1),
        statement=" ".join(statement.split())[:_STATEMENT_LENGTH_MAX] if statement else None,
        held=_held(row.kind, row.table) if names is None else _named(*names),
    )


def _named(queue: str | None, partition: str | None, group: str | None) -> str:
    if group is not None:
        return f"the cursor of group {group!r} in partition {partition!r} of queue {queue!r}"
    if partition is not None:
        return f"partition {partition!r} of queue {queue!r}"
    return f"queue {queue!r}"


def _held(kind: str | None, table: str | None) -> str:
    if kind == "tuple":
        return f"a row of {table}"
    if kind == "relation":
        return f"the table {table}"
    if kind == "advisory":
        return "an advisory lock"
    return "a name that it creates, or a row that it changes"
