"""Connections of Spark's processes to PostgreSQL: one per task, by psycopg, closed when the task ends.

A DSN is found where it is used, on the driver and on every executor, and stands in no plan, offset, log or error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from lockstep.config import ENVIRONMENT_PREFIX, Config, load
from lockstep.errors import InvalidOption, LockstepError, Unavailable
from lockstep.storage.postgres.failures import caused_by, translate
from lockstep.storage.postgres.session import ISOLATION, limits

APPLICATION_NAME = "lockstep-spark"

# A network that is gone is noticed after a minute, and not by the kernel's own two hours.
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
_KEEPALIVE_SECONDS_MIN = 60.0
"""A JVM that collects garbage keeps its machine's other processes from running, too."""


_SET = "select set_config(t.name, t.value, false) from unnest(%s::text[], %s::text[]) t (name, value)"


@dataclass(frozen=True, slots=True)
class Access:
    """Where the database and the encryption key are to be found; secrets are not part of its repr."""

    dsn: str | None = field(default=None, repr=False)
    dsn_env: str | None = None
    encryption_key_env: str | None = None

    def config(self) -> Config:
        """The settings in force in this process."""
        # Variables that the options of this read, or of another, name may begin like a setting and be none.
        environ = {name: value for name, value in os.environ.items() if _is_setting(name)}
        return load(
            {
                "dsn": self.dsn or _variable(self.dsn_env, "dsnEnv"),
                "encryption_key": _variable(self.encryption_key_env, "encryptionKeyEnv"),
            },
            environ=environ,
        )

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection without a transaction around its statements. Raises Unavailable whatever breaks on it."""
        config = self.config()
        if config.dsn is None:
            raise InvalidOption("no database: give the option dsn, or dsnEnv, or set LOCKSTEP_DSN on every node")
        connection = _connect(config.dsn, config)
        try:
            with explained():
                settings = {**_limits(config), **ISOLATION}
                connection.execute(_SET, [list(settings), list(settings.values())])
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
    return variable.startswith(ENVIRONMENT_PREFIX) and variable[len(ENVIRONMENT_PREFIX) :].lower() in (
        Config.__struct_fields__
    )


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
        given = conninfo_to_dict(dsn)
        if "," in str(given.get("host")) and "target_session_attrs" not in given:
            settings = {**settings, "target_session_attrs": "primary"}
        connection = psycopg.connect(dsn, autocommit=True, **settings)
    except psycopg.ProgrammingError:
        # Its text repeats the DSN.
        raise InvalidOption("the dsn is none that PostgreSQL understands") from None
    except psycopg.OperationalError as error:
        raise Unavailable(f"the database cannot be reached: {error}") from None
    # Plans made for one position are wrong for the next.
    connection.prepare_threshold = None
    return connection


@contextmanager
def explained() -> Iterator[None]:
    """Errors of the driver become ours."""
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
