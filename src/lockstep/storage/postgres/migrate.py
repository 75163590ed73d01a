"""Brings a database to the schema of this version: numbered migrations, then the procedures if they changed.

Several servers may start at once: one advisory lock, held for the transaction, lets one of them work and the
others find it done. All of it is one transaction, so a failure leaves the database as it was.
"""

from __future__ import annotations

import logging
from typing import Any

import asyncpg

from lockstep.errors import SchemaTooNew, Unavailable
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.failures import caused_by, translate

logger = logging.getLogger("lockstep.storage")

ADVISORY_LOCK = 0x6C6F636B73746570
"""The ASCII of `lockstep`."""

ROLES = ("lockstep_producer", "lockstep_consumer", "lockstep_reader", "lockstep_admin", "lockstep_server")
"""Roles of which applications can be members; sql/grants.sql has their rights."""
_SCHEMA_STATE: sql.Procedure[Any] = sql.procedure("schema_state")
_IS_WITHOUT_TABLES = """
select to_regprocedure('lockstep.schema_state()') is not null
   and not has_table_privilege(to_regclass('lockstep.migration')::oid, 'select')
"""
_MISSING_ROLES = "select n from unnest($1::text[]) n where not exists (select 1 from pg_roles r where r.rolname = n)"

SERVER_VERSION_MIN = 15
ENCODINGS = ("UTF8", "SQL_ASCII")
"""What holds every name; the second takes any bytes as they come."""

_BOOKKEEPING = """
create schema if not exists lockstep;
create table if not exists lockstep.migration (
    version int primary key,
    name text not null,
    applied_at timestamptz not null default clock_timestamp()
);
create table if not exists lockstep.procedures (
    only_row boolean primary key default true check (only_row),
    schema_version int not null,
    checksum text not null,
    applied_at timestamptz not null default clock_timestamp()
);
"""

# Objects that this transaction did not write belong to an older version. Functions are replaced and not dropped, so
# that sessions can continue and objects that users built on them stay.
_DROP_LEFT_OVER = """
do $$
declare
    _name text;
begin
    for _name in select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = 'lockstep'::regnamespace and p.xmin::text <> (pg_current_xact_id()::xid)::text
    loop
        execute 'drop function ' || _name;
    end loop;
end $$;
"""


# Bodies are not checked while they are created, because they call each other; the tests call every one of them.
_NO_BODY_CHECK = "set local check_function_bodies = off"
_RECORD_MIGRATION = "insert into lockstep.migration (version, name) values ({}, {})"
_RECORD_PROCEDURES = (
    "insert into lockstep.procedures (schema_version, checksum) values ({}, {}) "
    "on conflict (only_row) do update set schema_version = excluded.schema_version, "
    "checksum = excluded.checksum, applied_at = clock_timestamp()"
)


async def migrate(connection: asyncpg.Connection[Any]) -> list[str]:
    """Apply missing migrations; returns their names. Raises SchemaTooNew, Unavailable."""
    _check_server(connection)
    try:
        return await _migrate(connection)
    except asyncpg.PostgresError as error:
        explained = translate(error)
        if explained is error:
            explained = Unavailable(f"the migration failed, and nothing was changed: {error}")
        raise caused_by(explained, error)  # noqa: B904


def _check_server(connection: asyncpg.Connection[Any]) -> None:
    major = connection.get_server_version().major
    if major < SERVER_VERSION_MIN:
        raise Unavailable(f"Lockstep needs PostgreSQL {SERVER_VERSION_MIN} or newer, this server is {major}")
    encoding = connection.get_settings().server_encoding
    if encoding not in ENCODINGS:
        raise Unavailable(f"Lockstep needs a database in UTF8, this one is in {encoding}")


async def _migrate(connection: asyncpg.Connection[Any]) -> list[str]:
    if await _is_current(connection):
        return []
    async with connection.transaction():
        await connection.execute("set local statement_timeout = 0; set local lock_timeout = 0")
        await connection.execute("select pg_advisory_xact_lock($1)", ADVISORY_LOCK)
        await connection.execute(_BOOKKEEPING)
        applied = await _apply_migrations(connection)
        if await _procedures_differ(connection):
            await _apply_procedures(connection)
            applied.append("procedures")
    return applied


def script(version: int = 0) -> str:
    """The SQL that `migrate` would run on a database of a schema version, for others to run. Raises SchemaTooNew."""
    _refuse_newer(version)
    ours = len(sql.migrations())
    steps = [
        "begin;",
        f"set local statement_timeout = 0; set local lock_timeout = 0; {_NO_BODY_CHECK};",
        f"select pg_advisory_xact_lock({ADVISORY_LOCK});",
        _BOOKKEEPING.strip(),
        *[f"{migration.sql.strip()}\n{_record(migration)};" for migration in sql.migrations()[version:]],
        sql.procedures().strip(),
        _DROP_LEFT_OVER.strip(),
        sql.grants().strip(),
        f"{_RECORD_PROCEDURES.format(ours, _quoted(sql.procedures_checksum()))};",
        "commit;",
    ]
    return "\n\n".join(steps) + "\n"


def _record(migration: sql.Migration) -> str:
    return _RECORD_MIGRATION.format(migration.version, _quoted(migration.name))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


async def missing_roles(connection: asyncpg.Connection[Any]) -> list[str]:
    """Our roles that the database server lacks, because the migration's role may not create roles."""
    rows = await connection.fetch(_MISSING_ROLES, ROLES)
    return [name for (name,) in rows]


async def schema_version(connection: asyncpg.Connection[Any]) -> int:
    """The version of the database's schema; 0 for a database that was never migrated."""
    if await connection.fetchval("select to_regclass('lockstep.migration') is null"):
        return 0
    version: int = await connection.fetchval("select coalesce(max(version), 0) from lockstep.migration")
    return version


async def check_schema(connection: asyncpg.Connection[Any]) -> None:
    """Raises Unavailable or SchemaTooNew unless the database has this version's schema."""
    try:
        if await _is_current(connection):
            return
    except Exception as error:
        raise caused_by(translate(error), error)  # noqa: B904
    raise Unavailable("the database has another version's schema: start again, or run lockstep migrate")


async def _is_current(connection: asyncpg.Connection[Any]) -> bool:
    """The common case, checked without taking the lock. Raises SchemaTooNew; Unavailable for a role that cannot
    migrate, if the schema has another version."""
    if await connection.fetchval(_IS_WITHOUT_TABLES):
        version, checksum = await connection.fetchrow(_SCHEMA_STATE().sql)
        _refuse_newer(version)
        if version == len(sql.migrations()) and checksum == sql.procedures_checksum():
            return True
        raise Unavailable("the database has another version's schema, and this role cannot run lockstep migrate")
    version = await schema_version(connection)
    _refuse_newer(version)
    return version == len(sql.migrations()) and not await _procedures_differ(connection)


def _refuse_newer(version: int) -> None:
    ours = len(sql.migrations())
    if version > ours:
        raise SchemaTooNew(
            f"the database has schema version {version}, and this Lockstep knows only up to {ours}: "
            "it was migrated by a newer Lockstep; use that one"
        )


async def _apply_migrations(connection: asyncpg.Connection[Any]) -> list[str]:
    version = await schema_version(connection)
    _refuse_newer(version)
    applied = []
    for migration in sql.migrations()[version:]:
        await connection.execute(migration.sql)
        await connection.execute(_RECORD_MIGRATION.format("$1", "$2"), migration.version, migration.name)
        applied.append(f"{migration.version:04d}_{migration.name}")
    return applied


async def _procedures_differ(connection: asyncpg.Connection[Any]) -> bool:
    stored = await connection.fetchval("select checksum from lockstep.procedures")
    return bool(stored != sql.procedures_checksum())


async def _apply_procedures(connection: asyncpg.Connection[Any]) -> None:
    await connection.execute(_NO_BODY_CHECK)
    await connection.execute(sql.procedures())
    await connection.execute(_DROP_LEFT_OVER)
    await connection.execute(sql.grants())
    missing = await missing_roles(connection)
    if missing:
        logger.warning("roles_missing", extra={"action": "roles_missing", "roles": missing})
    statement = _RECORD_PROCEDURES.format("$1", "$2")
    await connection.execute(statement, len(sql.migrations()), sql.procedures_checksum())
