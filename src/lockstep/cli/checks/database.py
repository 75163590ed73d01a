"""Checks of a PostgreSQL: reachability, version, settings, our schema, clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import InsufficientPrivilege

from lockstep.cli.checks.findings import CheckResult, fail, ok, warn
from lockstep.config import Config, without_password
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.failures import NotPrimary
from lockstep.storage.postgres.hosts_by_psycopg import Found, connect_primary, hosts_in, primaries_at
from lockstep.storage.postgres.migrate import SERVER_VERSION_MIN

_CLOCK_SECONDS_WARN, _CLOCK_SECONDS_FAIL = 1.0, 60.0
_APART_PER_WORKER = 2
"""Connections of a server process besides its pool: one that listens, and one that looks up the holders of locks."""

_Connection = psycopg.Connection[Any]


def is_postgres(dsn: str) -> bool:
    return dsn.startswith(("postgresql://", "postgres://"))


def check_database(dsn: str, config: Config) -> Iterator[CheckResult]:
    shown = without_password(dsn)
    if not is_postgres(dsn):
        yield fail("database", f"{shown} is no address of a PostgreSQL", "A DSN begins with postgresql://.")
        return
    if not _understood(dsn):
        advice = "Is it like postgresql://user:password@host:port/database, with %40 for an @ in the password?"
        yield fail("database", f"{shown} is not an address that PostgreSQL understands", advice)
        return
    try:
        settings: dict[str, Any] = {
            "search_seconds": config.primary_search_seconds,
            "autocommit": True,
            "connect_timeout": max(int(config.connect_timeout_seconds), 1),
            "client_encoding": "UTF8",  # for a database without an encoding, psycopg returns bytes instead of text
        }
        with connect_primary(dsn, **settings) as connection:
            yield ok("database", f"{shown} answers")
            if hosts_in(dsn):
                yield _check_primaries(primaries_at(dsn, **settings))
            yield from _check(connection, config)
    except (psycopg.Error, NotPrimary) as error:
        text = " ".join(str(error).split())
        yield fail("database", f"{shown}: {text}", "Is it running, and are address, user and password right?")


def _understood(dsn: str) -> bool:
    """Whether each part is valid. The driver's errors would quote parts of the password."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return False
    ports = str(parts.get("port") or "").split(",")
    # A host that begins with @ is an abstract socket, without a file.
    return "@" not in str(parts.get("host") or "")[1:] and all(port.isdigit() or not port for port in ports)


def _check_primaries(found: list[Found]) -> CheckResult:
    """An old primary that was restarted after a failover accepts writes as well."""
    named = " and ".join(f"{one.host} on timeline {one.number}" for one in found)
    if len(found) > 1:
        advice = (
            "Fence all but one: stop it, or take it out of the address. After a failover the highest timeline counts."
        )
        return fail("primary", f"{named} all take changes", advice)
    return ok("primary", named)


def _check(connection: _Connection, config: Config) -> Iterator[CheckResult]:
    yield _check_version(connection)
    yield _check_encoding(connection)
    yield _check_writable(connection)
    yield _check_durability(connection)
    yield _check_connections(connection, config)
    yield _check_timeouts(connection)
    yield _check_autovacuum(connection)
    yield _check_schema(connection)
    yield _check_clock(connection)


def _value(connection: _Connection, query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    (value,) = row
    return value


def _setting(connection: _Connection, name: str) -> str:
    return str(_value(connection, f"select current_setting('{name}')"))


def _check_version(connection: _Connection) -> CheckResult:
    version = connection.info.server_version // 10_000
    if version < SERVER_VERSION_MIN:
        return fail("version", f"PostgreSQL {version}", f"Use PostgreSQL {SERVER_VERSION_MIN} or newer.")
    return ok("version", f"PostgreSQL {version}")


def _check_encoding(connection: _Connection) -> CheckResult:
    encoding = _setting(connection, "server_encoding")
    if encoding != "UTF8":
        return fail("encoding", encoding, "Create the database with encoding 'UTF8'.")
    return ok("encoding", encoding)


def _check_writable(connection: _Connection) -> CheckResult:
    if _value(connection, "select pg_is_in_recovery()") or _setting(connection, "transaction_read_only") == "on":
        return fail("writable", "read-only", "Use the primary server, and a role that may write.")
    return ok("writable", "yes")


def _check_durability(connection: _Connection) -> CheckResult:
    if _setting(connection, "fsync") == "off" or _setting(connection, "full_page_writes") == "off":
        advice = "Set fsync = on and full_page_writes = on: a crash may destroy the whole database."
        return fail("durability", "fsync or full_page_writes is off", advice)
    if _setting(connection, "synchronous_commit") == "off":
        advice = "Set synchronous_commit = on: a crash may lose messages whose push was acknowledged."
        return warn("durability", "synchronous_commit is off", advice)
    return ok("durability", "fsync and synchronous_commit are on")


def _check_connections(connection: _Connection, config: Config) -> CheckResult:
    reserved = _setting(connection, "superuser_reserved_connections")
    available = int(_setting(connection, "max_connections")) - int(reserved)
    needed = config.workers * (config.pool_connections_max + _APART_PER_WORKER)
    text = f"a server may use {needed} of {available}"
    if needed > available:
        return fail("connections", text, "Raise max_connections, or lower pool_connections_max or workers.")
    if needed > 0.8 * available:
        return warn("connections", text, "Raise max_connections if other servers or programs use the database, too.")
    return ok("connections", text)


def _check_timeouts(connection: _Connection) -> CheckResult:
    """Only the harmful timeout. Those of statements and locks are overridden by our own settings."""
    limit = _setting(connection, "idle_session_timeout")
    if limit != "0":
        advice = "Set it to 0 for the role of Lockstep: it ends connections that only wait for work."
        return warn("time-outs", f"idle_session_timeout is {limit}", advice)
    return ok("time-outs", "those of statements, locks and idle transactions are set by Lockstep itself")


def _check_autovacuum(connection: _Connection) -> CheckResult:
    if _setting(connection, "autovacuum") == "off":
        return warn("autovacuum", "off", "Set autovacuum = on: without it tables grow and queries get slow.")
    return ok("autovacuum", "on")


def _check_schema(connection: _Connection) -> CheckResult:
    ours = len(sql.migrations())
    try:
        if _value(connection, "select to_regclass('lockstep.migration') is null"):
            return warn("schema", "missing", "Start the server, or run lockstep migrate.")
        theirs = _value(connection, "select coalesce(max(version), 0) from lockstep.migration")
    except InsufficientPrivilege as error:
        text = (error.diag.message_primary or str(error)).strip()
        return fail("schema", text, "Use the role that owns the schema lockstep, or make this one a member of it.")
    if theirs > ours:
        return fail("schema", f"version {theirs}, newer than {ours}", "Use the newer Lockstep that migrated it.")
    if theirs < ours:
        return warn("schema", f"version {theirs}, older than {ours}", "Start the server, or run lockstep migrate.")
    return ok("schema", f"version {theirs}")


def _check_clock(connection: _Connection) -> CheckResult:
    before = datetime.now(UTC)
    theirs: datetime = _value(connection, "select clock_timestamp()")
    ours = before + (datetime.now(UTC) - before) / 2
    seconds = (theirs - ours).total_seconds()
    text = f"the database is {abs(seconds):.3f} s {'ahead of' if seconds > 0 else 'behind'} this machine"
    advice = "Synchronise both clocks (NTP): times that clients give, such as those of seeks, are off by that much."
    if abs(seconds) > _CLOCK_SECONDS_FAIL:
        return fail("clock", text, advice)
    return warn("clock", text, advice) if abs(seconds) > _CLOCK_SECONDS_WARN else ok("clock", text)
