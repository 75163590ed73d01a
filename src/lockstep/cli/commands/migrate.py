"""`lockstep migrate`: brings a database to the schema of this version, or prints the SQL that does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import asyncpg
import click

from lockstep.cli.connection import Session, database_in, on_session
from lockstep.config import Config
from lockstep.errors import LockstepError
from lockstep.storage.postgres import migrate as migrating
from lockstep.storage.postgres.store import PostgresStore

T = TypeVar("T")


@click.command()
@on_session("dsn", "data_dir", "output")
@click.option("--sql", is_flag=True, help="Change nothing; print the SQL, for others to run.")
def migrate(session: Session, sql: bool) -> None:
    """Create or upgrade our schema.

    It is about the database of --dsn, LOCKSTEP_DSN or --data-dir. A server does this when it starts; the command is
    for those who do not give it the right to. With --sql and no database, the SQL is that for a new database.
    """
    config = session.settings()
    if config.dsn is None and session.data_dir is None:
        if not sql:
            raise click.UsageError("Name the database: --dsn, LOCKSTEP_DSN or --data-dir.")
        click.echo(migrating.script(), nl=False)
        return
    with nullcontext(config.dsn) if session.data_dir is None else database_in(session.data_dir, begins=not sql) as dsn:
        if sql:
            click.echo(migrating.script(_on(dsn or "", config, migrating.schema_version)), nl=False)
            return
        applied = _on(dsn or "", config, migrating.migrate)
    text = f"applied: {', '.join(applied)}" if applied else "the database is up to date; nothing was done"
    session.output.done(text, applied=applied)


def _on(dsn: str, config: Config, work: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
    """What the work gives on a connection to the database."""

    async def connected() -> T:
        store = PostgresStore(dsn, config=config)
        try:
            async with store.database.connection() as connection:
                return await work(connection)
        except asyncpg.PostgresError as error:
            raise LockstepError(f"the migration failed, and nothing was changed: {error}") from error
        finally:
            await store.close()

    return asyncio.run(connected())
