"""Holding up the requests of a server, by locks in its database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import psycopg

from support.until import until

_WAITERS = (
    "select count(*) from pg_stat_activity"
    " where wait_event_type = 'Lock' and datname = current_database() and strpos(query, %s) > 0"
)


class Lock(NamedTuple):
    """A statement that takes a lock, and a part of the statements that must wait for it."""

    statement: str
    waiting: str


PUSHES = Lock("select 1 from lockstep.partition for no key update", "lockstep.push")
"""Holds up pushes to partitions that are there."""
POPS = Lock("lock table lockstep.cursor in access exclusive mode", "lockstep.pop")


class HeldUp:
    """While this is held, calls of the store that need the lock wait for it."""

    def __init__(self, lock: Lock, connection: psycopg.Connection, looking: psycopg.Connection) -> None:
        self._lock = lock
        self._connection = connection
        self._looking = looking

    async def wait_for_waiter(self) -> None:
        """Returns when a call waits for the lock."""
        await until(lambda: self._looking.execute(_WAITERS, [self._lock.waiting]).fetchone() != (0,))

    def release(self) -> None:
        self._connection.rollback()


@asynccontextmanager
async def held_up(dsn: str, lock: Lock) -> AsyncIterator[HeldUp]:
    """Hold a lock until it is released, or the block ends."""
    with psycopg.connect(dsn) as connection, psycopg.connect(dsn, autocommit=True) as looking:
        connection.execute(lock.statement)  # type: ignore[call-overload]
        try:
            yield HeldUp(lock, connection, looking)
        finally:
            connection.rollback()
