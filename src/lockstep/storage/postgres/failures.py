"""Errors of the driver and of our procedures, translated once."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any

from lockstep.errors import (
    Conflict,
    Forbidden,
    InvalidOption,
    InvalidRequest,
    LockstepError,
    LockTimeout,
    OperationPending,
    QueueFull,
    TimelineBehind,
    TooManyPartitions,
    Unavailable,
)

if TYPE_CHECKING:
    import asyncpg

RETRYABLE = ("40001", "40P01")
"""Serialization failure and deadlock: the transaction did nothing and may be tried again."""

_CANNOT_CONNECT_NOW = ("57P03", "53300")
_TOO_MANY_CONNECTIONS = "53300"
_READ_ONLY = "25006"
_CANCELED = "57014"
_LOCK_NOT_AVAILABLE = "55P03"
_IDLE_IN_TRANSACTION = ("25P03", "25P04")
_SEQUENCE_AT_ITS_END = "2200H"
_CONNECTION_ENDED = ("57P01", "57P02", "57P03", "57P05", *_IDLE_IN_TRANSACTION)


class Dying(Exception):
    """A message becomes a dead letter in a queue with a dead queue: repeat the call in a transaction that pushes it
    there. Never leaves the store."""


class StaleName(Exception):
    """An id that was looked up before is gone: look it up again. Never leaves the store."""


class NotPrimary(ConnectionError):
    """The server that answered is a standby, or a primary that has been replaced."""


class Replaced(NotPrimary):
    """The server that answered is a primary that another has replaced."""

    def __init__(self, *, number: int, seen: int) -> None:
        self.number, self.seen = number, seen
        super().__init__(
            f"the server is on timeline {number} of the database, and this process has seen timeline {seen}: another "
            "server has taken over. Stop this one, or take it out of the address (DSN). If a backup was restored on "
            "purpose, restart this process"
        )


def timed_out(error: BaseException) -> bool:
    """Whether a translated error means that a statement exceeded its time limit."""
    return getattr(error.__cause__, "sqlstate", None) == _CANCELED


def has_waited(error: BaseException) -> bool:
    """Whether the database ended a statement because it took too long, which may have been for a lock."""
    return getattr(error, "sqlstate", None) in (_CANCELED, _LOCK_NOT_AVAILABLE)


def translate(error: BaseException) -> BaseException:
    """The error to raise instead; the same error if it is not from the database."""
    state = getattr(error, "sqlstate", None)
    if state == "LS001":
        return StaleName(_text(error))
    if state == "LS003":
        return QueueFull(_text(error))
    if state == "LS005":
        return InvalidOption(_text(error))
    if state == "LS006":
        return Dying(_text(error))
    if state == "LS007":
        return Conflict(_text(error))
    if state == "LS008":
        return OperationPending(_text(error))
    if state == "LS009":
        return Forbidden(_text(error))
    if state == "LS010":
        return TooManyPartitions(_text(error))
    if state in ("LS002", "LS004"):
        return InvalidRequest(_text(error))
    if state == _SEQUENCE_AT_ITS_END:
        return Conflict(f"the database has used up its ids, so nothing new can be created: {error}")
    if state == _CANCELED:
        return Unavailable("the database did not answer in time (statement_timeout_seconds)")
    if state == _LOCK_NOT_AVAILABLE:
        return LockTimeout("a lock could not be acquired in time (lock_timeout_seconds)")
    if state in RETRYABLE:
        return Unavailable(f"the transaction kept conflicting with others: {error}")
    if state == _READ_ONLY:
        return Unavailable("the database takes no changes: this server is a standby, or is set to read only")
    if state in _IDLE_IN_TRANSACTION:
        return Unavailable("this process hung in a transaction, which was ended (idle_transaction_timeout_seconds)")
    if state is not None and (state[:2] in ("28", "3D") or state == "42501"):
        return Unavailable(f"the database refuses us: {error}")
    if state is not None and state[:2] in ("08", "53", "57", "58"):
        return Unavailable(f"the database is not available: {error}")
    if isinstance(error, Replaced):
        return TimelineBehind(str(error), timeline=error.number, timeline_seen=error.seen)
    if isinstance(error, NotPrimary):
        return Unavailable(str(error))
    if isinstance(error, _connection_lost()):
        return Unavailable(f"the database cannot be reached: {str(error) or type(error).__name__}")
    return error


@cache
def _connection_lost() -> tuple[type[BaseException], ...]:
    # Imported on first use, because Spark's many short-lived processes use the other driver.
    import asyncpg

    return (
        asyncpg.PostgresConnectionError,
        asyncpg.InterfaceError,
        _driver_lost_track(),
        OSError,
        asyncio.TimeoutError,
    )


def caused_by(found: BaseException, error: BaseException) -> BaseException:
    """Raise a translated error. It may be the same error, which must not become its own cause."""
    if found is not error:
        found.__cause__ = error
    return found


@cache
def _driver_lost_track() -> type[BaseException]:
    """asyncpg's error for a call between the server's last message and the end of the connection."""
    import asyncpg

    found: type[BaseException] = asyncpg.InternalClientError
    return found


def _text(error: BaseException) -> str:
    """The server's own sentence, without the call stack that psycopg adds to it."""
    return str(error).partition("\nCONTEXT:")[0]


def unreachable(error: BaseException, *, maybe_applied: bool = False) -> BaseException:
    """The error to raise if there is no connection, or it was lost. With `maybe_applied`, the server may have applied
    the request before that."""
    translated = translate(error)
    if isinstance(translated, Unavailable):
        translated.details["unreachable"] = True
        if maybe_applied:
            translated.details["maybe_applied"] = True
    return translated


def lost(error: BaseException, connection: asyncpg.Connection[Any]) -> bool:
    """Whether a call failed because its connection is no longer usable: it ended, or its server is no longer the
    primary."""
    state = getattr(error, "sqlstate", None)
    if state is not None and not isinstance(error, LockstepError):
        return state == _READ_ONLY or state in _CONNECTION_ENDED or state[:2] == "08"
    if isinstance(error, _driver_lost_track()):
        return True
    return connection.is_closed() and isinstance(error, _connection_lost())


def was_not_sent(error: BaseException) -> bool:
    """Whether the driver has refused to send a statement, because the server has already ended the session. The
    transaction so far is rolled back."""
    return isinstance(error, _driver_lost_track()) and str(error).startswith("cannot switch to state")


def is_full(error: BaseException) -> bool:
    """Whether the server is reachable and has no connection left."""
    return getattr(error, "sqlstate", None) == _TOO_MANY_CONNECTIONS


def may_retry_connect(error: BaseException) -> bool:
    """Whether connecting may work a little later: the server is starting, full, or not there yet."""
    if getattr(error, "sqlstate", None) in _CANNOT_CONNECT_NOW:
        return True
    import asyncpg

    return isinstance(error, asyncpg.PostgresConnectionError | OSError | asyncio.TimeoutError)


def is_retryable(error: Any) -> bool:
    return not isinstance(error, LockstepError) and getattr(error, "sqlstate", None) in RETRYABLE
