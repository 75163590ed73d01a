"""Transactions of Spark's processes: with suitable plans for our procedures, and retried when PostgreSQL requires
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

from lockstep.errors import Unavailable
from lockstep.spark.database import explained, set_all
from lockstep.storage.postgres.failures import RETRYABLE, StaleName
from lockstep.storage.postgres.pool import backoff_seconds
from lockstep.storage.postgres.session import PLANNER

T = TypeVar("T")

_LOCK_NOT_AVAILABLE = "55P03"


def prepare(connection: psycopg.Connection[Any]) -> None:
    """Our procedures have one right plan each, whatever the statistics say; see the pool of the store."""
    set_all(connection, PLANNER)


def repeated(
    connection: psycopg.Connection[Any], work: Callable[[], T], *, attempts_max: int, hurried: bool = False
) -> T:
    """Run `work` in a transaction; repeat it after a deadlock, or if an object that it needs was just deleted.

    `hurried`: wait for locks only for a moment, and run it again if one is not available.
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
