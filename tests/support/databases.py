"""Databases for tests: a template that is migrated once, and a clone of it for each test."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg import sql

_URL = re.compile(r"^(postgres(?:ql)?://[^/?]*)(?:/([^?]*))?")

# Nothing in these tests outlives the server, so it need not be durable. Tests of crashes start their own.
FAST_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "256MB"}
SCRATCH_BYTES = 2 << 30


def with_database(dsn: str, name: str) -> str:
    """The same server's DSN for another database. A URL stays a URL: asyncpg takes nothing else."""
    changed, count = _URL.subn(lambda match: f"{match[1]}/{name}", dsn)
    if not count:
        raise ValueError(f"the DSN must be a URL (postgresql://...), not {dsn!r}")
    return changed


def database_name(dsn: str) -> str:
    match = _URL.match(dsn)
    assert match is not None
    return match[2]


@cache
def scratch_base() -> str | None:
    """Memory, if there is enough of it: killed processes lose nothing there, and fsync costs nothing."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > SCRATCH_BYTES else None


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory that the unprivileged server user can reach; as root, pytest's own are closed to it."""
    path = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir=scratch_base()))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def running_server() -> Iterator[str]:
    """The DSN of LOCKSTEP_TEST_DSN, or of an embedded PostgreSQL that is stopped afterwards."""
    given = os.environ.get("LOCKSTEP_TEST_DSN")
    if given:
        yield _password_apart(given)
        return
    from lockstep.storage.postgres.embedded import EmbeddedPostgres
    from lockstep.storage.postgres.key_files import KEY_FILE

    with scratch_directory() as path:
        server = EmbeddedPostgres(path / "data", settings=FAST_SETTINGS)
        try:
            server.start()
            # Tests set the key themselves.
            (path / "data" / KEY_FILE).unlink()
            yield server.superuser_dsn  # it makes databases
        finally:
            server.stop()


def _password_apart(dsn: str) -> str:
    """The DSN for command lines, which take no password; every driver finds it in the environment."""
    parts = urlsplit(dsn)
    if parts.password is None:
        return dsn
    os.environ["PGPASSWORD"] = unquote(parts.password)
    credentials, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{credentials.partition(':')[0]}@{host}").geturl()


def run_apart(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine to its end on a thread of its own, out of the way of the test's event loop."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


class Databases:
    """Clones of one migrated database, on a server that other processes may also use."""

    def __init__(self, server_dsn: str, *, prefix: str) -> None:
        self._server_dsn = server_dsn
        self._prefix = prefix
        self._numbers = itertools.count(1)
        self._template: str | None = None
        self._reused: _Reused | None = None

    def create(self) -> str:
        """An empty database's DSN."""
        return with_database(self._server_dsn, self._create(template="template1"))

    def clone(self) -> str:
        """A migrated database's DSN."""
        if self._template is None:
            self._template = self._migrated()
        return with_database(self._server_dsn, self._create(template=self._template))

    def emptied(self) -> str:
        """A migrated database's DSN, the same at every call, without anything of what it held before.

        For tests that only use a store: emptying takes a twentieth of the time that a clone takes.
        """
        if self._reused is None:
            self._reused = _Reused(self.clone())
        else:
            self._reused.empty()
        return self._reused.dsn

    def drop(self, dsn: str) -> None:
        self._drop(database_name(dsn))

    def close(self) -> None:
        if self._reused is not None:
            self._reused.close()
            self.drop(self._reused.dsn)
        if self._template is not None:
            self._drop(self._template)

    def _migrated(self) -> str:
        from lockstep.storage.postgres.store import PostgresStore

        name = self._create(template="template1")
        store = PostgresStore(with_database(self._server_dsn, name))

        async def migrate() -> None:
            await store.open()
            await store.close()

        try:
            run_apart(migrate)
            with psycopg.connect(with_database(self._server_dsn, name)) as connection:
                # A clone is another database, which begins with the first ids.
                connection.execute("delete from lockstep.system")
        except BaseException:
            self._drop(name)
            raise
        return name

    def _create(self, *, template: str) -> str:
        name = f"{self._prefix}_{next(self._numbers)}"
        self._execute("create database {} template {}", name, template)
        return name

    def _drop(self, name: str) -> None:
        self._execute("drop database if exists {} with (force)", name)

    def _execute(self, statement: str, *names: str) -> None:
        with psycopg.connect(self._server_dsn, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))  # type: ignore[arg-type]


# The initial rows of a migrated database stay.
_KEPT_TABLES = ["migration", "procedures"]
_BALLAST = {"delivery": "group_id = 0", "role_rule": "role ^@ 'lockstep_'"}

_TABLES = "(select array_agg(tablename order by tablename) from pg_tables where schemaname = 'lockstep')"
# A failed test may have left connections behind, whose locks would block this.
_EMPTY = """
create or replace function pg_temp.empty() returns name[] language plpgsql as $$
begin
    perform pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid();
    {deletes}
    return {tables};
end $$
"""


class _Reused:
    """A database that is emptied again and again, over a connection that stays: a new one would read the catalog and
    plan the statements for every table each time."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._connection: psycopg.Connection[Any] | None = None
        self._tables: list[str] | None = None

    def empty(self) -> None:
        try:
            self._empty()
        except psycopg.OperationalError:  # a test ended our connection, too
            self.close()
            self._empty()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._tables = None

    def _empty(self) -> None:
        if self._connection is None:
            self._connection = psycopg.connect(self.dsn, autocommit=True)
            self._connection.execute("set session_replication_role = replica")
        while self._tables is None or self._tables != self._asked(self._connection, "pg_temp.empty()"):
            self._tables = self._asked(self._connection, _TABLES)
            deletes = "".join(_delete(table) for table in self._tables if table not in _KEPT_TABLES)
            self._connection.execute(_EMPTY.format(deletes=deletes, tables=_TABLES))

    def _asked(self, connection: psycopg.Connection[Any], expression: str) -> list[str]:
        [tables] = connection.execute(f"select {expression}").fetchone() or [[]]
        return list(tables)


def _delete(table: str) -> str:
    kept = _BALLAST.get(table, "false")
    return f'delete from lockstep."{table}" where not ({kept});\n'


@contextlib.contextmanager
def away(dsn: str) -> Iterator[None]:
    """Let the database refuse new connections, and end the existing ones."""
    name = database_name(dsn)
    with psycopg.connect(with_database(dsn, "postgres"), autocommit=True) as other:
        other.execute(f"alter database {name} allow_connections false")
        other.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
        try:
            yield
        finally:
            other.execute(f"alter database {name} allow_connections true")
