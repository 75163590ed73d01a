"""Who holds the lock that a call waits for.

PostgreSQL says only that a lock could not be had in time. While a call waits, another connection can see for whom: so a
pool looks at its calls that take long (`lock_watch_seconds`) and remembers what it has found until they end.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from lockstep.errors import Unavailable
from lockstep.storage.postgres import sql

logger = logging.getLogger("lockstep.storage.pool")

_STATEMENT_LENGTH_MAX = 200
_HIDDEN = "<insufficient privilege>"
_FAILURES = (OSError, Unavailable, asyncpg.PostgresError, asyncpg.InterfaceError)


@dataclass(frozen=True, slots=True)
class Holder:
    """A session that holds a lock, as far as we may see it."""

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


class Holders:
    """What is known of those for whom calls wait, by the process id of the session that waits."""

    def __init__(self, ask: Callable[..., Awaitable[list[Any]]]) -> None:
        self._ask = ask
        self._found: dict[int, Holder] = {}
        self._told: set[int] = set()

    async def look(self, waiters: Sequence[int]) -> None:
        """Find out for whom these sessions wait. What cannot be found out now stays as it was."""
        try:
            rows = await self._ask(sql.query("lock_holders"), waiters)
        except _FAILURES:
            return
        names = await self._names([row for row in rows if row[7] == "tuple"])
        for row in rows:
            self._found[row[0]] = _holder(row, names.get((row[8], row[9])))
        self._tell(rows)

    async def _names(self, rows: Sequence[Any]) -> dict[tuple[str, str], tuple[str | None, ...]]:
        """The queue, partition and group of locked rows. Our tables may be locked themselves: then without names."""
        places = list(dict.fromkeys((row[8], row[9]) for row in rows))
        if not places:
            return {}
        tables, tuples = [table for table, _ in places], [place for _, place in places]
        try:
            found = await self._ask(sql.query("lock_names"), tables, tuples)
        except _FAILURES:
            return {}
        return {places[row[0] - 1]: tuple(row[1:]) for row in found}

    def _tell(self, rows: Iterable[Any]) -> None:
        """Log each holder once, for as long as somebody waits for it."""
        holding = {row[1]: self._found[row[0]] for row in rows}
        for pid in holding.keys() - self._told:
            logger.warning("lock_held", extra={"action": "lock_held", **holding[pid].details()})
        self._told |= holding.keys()

    def forget(self, waiter: int) -> None:
        self._found.pop(waiter, None)
        if not self._found:
            self._told.clear()

    def of(self, waiter: int) -> Holder | None:
        return self._found.get(waiter)

    def any(self) -> Holder | None:
        """One of those for whom calls wait."""
        return next(iter(self._found.values()), None)


def _holder(row: Any, names: tuple[str | None, ...] | None) -> Holder:
    _, pid, user, application, state, seconds, statement, kind, table, _ = row
    if statement == _HIDDEN:
        statement = None
    return Holder(
        pid=pid,
        user=user,
        application=application or None,
        state=state,
        seconds=None if seconds is None else round(seconds, 1),
        statement=" ".join(statement.split())[:_STATEMENT_LENGTH_MAX] if statement else None,
        held=_held(kind, table) if names is None else _named(*names),
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
