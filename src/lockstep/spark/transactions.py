"""Transactions of Spark's processes: with the plans of our procedures, and tried again where PostgreSQL says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import RawCursor
from psycopg.rows import tuple_row

from lockstep.errors import Unavailable
from lockstep.spark.database import explained
from lockstep.storage.postgres.failures import RETRYABLE, StaleName
from lockstep.storage.postgres.pool import backoff_seconds
from lockstep.storage.postgres.session import PLANNER

T = TypeVar("T")

_SETTINGS = "select set_config(t.name, t.value, false) from unnest($1::text[], $2::text[]) t (name, value)"
_LOCK_NOT_AVAILABLE = "55P03"


def prepare(connection: psycopg.Connection[Any]) -> None:
    """Our procedures have one right plan each, whatever the statistics know; see the pool of the store."""
    cursor_of(connection).execute(_SETTINGS, [list(PLANNER), list(PLANNER.values())])


def cursor_of(connection: psycopg.Connection[Any]) -> RawCursor[Any]:
    """A cursor whose placeholders are $1, $2, …"""
    return RawCursor(connection, row_factory=tuple_row)


def row_of(cursor: RawCursor[Any], statement: str, arguments: Sequence[Any]) -> Any:
    """The one row that the statement gives."""
    row = cursor.execute(statement, arguments).fetchone()
    assert row is not None, statement
    return row


def repeated(
    connection: psycopg.Connection[Any], work: Callable[[], T], *, attempts_max: int, hurried: bool = False
) -> T:
    """Run `work` in a transaction; again where it met another in a deadlock, or something was deleted in this moment.

    `hurried`: it waits for locks only for a moment, and is run again if it does not get one.
    """
    retried = (*RETRYABLE, _LOCK_NOT_AVAILABLE) if hurried else RETRYABLE
    for attempt in range(attempts_max):
        try:
            with explained(), connection.transaction():
                return work()
        except StaleName:
            pass
        except Unavailable as error:
            if getattr(error.__cause__, "sqlstate", None) not in retried:
                raise
        time.sleep(backoff_seconds(attempt))
    raise Unavailable("the transaction kept conflicting with others, or with queues that are being deleted")
