"""Connections of Spark's processes to PostgreSQL: one per task, by psycopg, closed when the task ends.

A DSN is looked up where it is used, on the driver and on every executor. It never appears in a plan, offset, log or
error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg
from psycopg import RawCursor
from psycopg.rows import tuple_row

from lockstep.config import VARIABLES, Config, load
from lockstep.errors import InvalidOption, LockstepError, Unavailable
from lockstep.secret_files import FILE_SUFFIX
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.calls import Call
from lockstep.storage.postgres.failures import NotPrimary, caused_by, translate
from lockstep.storage.postgres.hosts_by_psycopg import connect_primary
from lockstep.storage.postgres.key_files import with_stored_key
from lockstep.storage.postgres.session import ISOLATION, PLANNER, limits

R = TypeVar("R")

APPLICATION_NAME = "lockstep-spark"

# A lost network is noticed after a minute, not after the kernel's default of two hours.
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
_KEEPALIVE_SECONDS_MIN = 60.0
"""Garbage collection of a JVM can stop the other processes of its machine as well."""

_INDEXES = {name: value for name, value in PLANNER.items() if name != "plan_cache_mode"}
"""Spark's reads use indexes, too, but their positions differ, so each read is planned anew."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where to find the database and the encryption key; secrets are not part of its repr."""

    dsn: str | None = field(default=None, repr=False)
    dsn_env: str | None = None
    encryption_key_env: str | None = None

    def config(self) -> Config:
        """The settings of this process."""
        # Variables named by options may begin like a setting without being one.
        environ = {name: value for name, value in os.environ.items() if _is_setting(name)}
        config = load(
            {
                "dsn": self.dsn or _variable(self.dsn_env, "dsnEnv"),
                "encryption_key": _variable(self.encryption_key_env, "encryptionKeyEnv"),
            },
            environ=environ,
        )
        return config if config.dsn is None else with_stored_key(config, config.dsn)

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection in autocommit mode. Every failure on it raises Unavailable."""
        config = self.config()
        if config.dsn is None:
            raise InvalidOption("no database: give the option dsn, or dsnEnv, or set LOCKSTEP_DSN on every node")
        connection = _connect(config.dsn, config)
        try:
            with explained():
                set_all(connection, {**_limits(config), **ISOLATION, **_INDEXES})
                yield connection
        finally:
            connection.close()


def _limits(config: Config) -> dict[str, str]:
    return limits(
        statement_timeout_seconds=config.spark_statement_timeout_seconds,
        lock_timeout_seconds=config.spark_lock_timeout_seconds,
        idle_transaction_timeout_seconds=config.spark_idle_transaction_timeout_seconds,
        client_check_seconds=config.client_check_seconds,
        keepalive_seconds=max(config.keepalive_seconds, _KEEPALIVE_SECONDS_MIN) if config.keepalive_seconds else 0,
    )


def _is_setting(variable: str) -> bool:
    """Commands pass secrets to executors as variables. These take precedence over the file that they come from, if it
    exists here.
    """
    held = variable.removesuffix(FILE_SUFFIX.upper())
    return variable in VARIABLES and (held == variable or not os.environ.get(held))


def _variable(name: str | None, option: str) -> str | None:
    if name is None:
        return None
    value = os.environ.get(name)
    if not value:
        raise InvalidOption(f"the option {option} names the environment variable {name}, which is not set here")
    return value


def _connect(dsn: str, config: Config) -> psycopg.Connection[Any]:
    settings: Mapping[str, Any] = {
        "application_name": APPLICATION_NAME,
        "connect_timeout": max(int(config.connect_timeout_seconds), 2),
        **_KEEPALIVES,
    }
    try:
        connection = connect_primary(dsn, search_seconds=config.primary_search_seconds, autocommit=True, **settings)
    except psycopg.ProgrammingError:
        # Its text repeats the DSN.
        raise InvalidOption("PostgreSQL does not understand the dsn") from None
    except psycopg.OperationalError as error:
        raise Unavailable(f"the database cannot be reached: {error}") from None
    except NotPrimary as error:
        raise caused_by(translate(error), error)  # noqa: B904
    # Plans made for one position are wrong for the next.
    connection.prepare_threshold = None
    return connection


def cursor_of(connection: psycopg.Connection[Any]) -> RawCursor[Any]:
    """A cursor whose placeholders are $1, $2, …"""
    return RawCursor(connection, row_factory=tuple_row)


def results_of(cursor: RawCursor[Any], call: Call[R]) -> list[R]:
    """The rows that a procedure returns, as records."""
    return call.rows(cursor.execute(call.sql, call.args).fetchall())


def result_of(cursor: RawCursor[Any], call: Call[R]) -> R:
    """The single record or value that a procedure returns."""
    [result] = results_of(cursor, call)
    return result


def rows_of(connection: psycopg.Connection[Any], query: str, *arguments: Any) -> list[Any]:
    """The rows of a query from `sql/queries/`."""
    return cursor_of(connection).execute(sql.query(query), arguments).fetchall()


def set_all(connection: psycopg.Connection[Any], settings: Mapping[str, str]) -> None:
    """Set settings for the rest of the session."""
    rows_of(connection, "session_settings", list(settings), list(settings.values()))


@contextmanager
def explained() -> Iterator[None]:
    """Convert the driver's errors to ours."""
    try:
        yield
    except psycopg.Error as error:
        raise caused_by(_explained(error), error)  # noqa: B904


def _explained(error: psycopg.Error) -> BaseException:
    found = translate(error)
    if isinstance(found, LockstepError):
        return found
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return Unavailable(f"the database went away: {error}")
    if isinstance(
        error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedFunction | psycopg.errors.InvalidSchemaName
    ):
        return Unavailable("the database has another version's schema, or none: run lockstep migrate")
    return found
