"""`lockstep migrate`: upgrades a database to the schema of this version, or prints the SQL for it."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import click

from lockstep.cli.connection import Session, database_in, on_session
from lockstep.cli.on_database import on_database
from lockstep.cli.output import note
from lockstep.storage.postgres import migrate as migrating


@click.command()
@on_session("dsn", "data_dir", "output")
@click.option("--sql", is_flag=True, help="Change nothing; print the SQL, for others to run.")
def migrate(session: Session, sql: bool) -> None:
    """Create or upgrade our schema.

    Works on the database of --dsn, LOCKSTEP_DSN or --data-dir. A server migrates when it starts; the command is for
    databases in which its role lacks the rights. With --sql and no database, prints the SQL for a new database.
    """
    config = session.settings()
    if config.dsn is None and session.data_dir is None:
        if not sql:
            raise click.UsageError("Name the database: --dsn, LOCKSTEP_DSN or --data-dir.")
        click.echo(migrating.script(), nl=False)
        return
    with nullcontext(config.dsn) if session.data_dir is None else database_in(session.data_dir, begins=not sql) as dsn:
        on = partial(on_database, dsn or "", config, failed="the migration failed, and nothing was changed")
        if sql:
            click.echo(migrating.script(on(migrating.schema_version)), nl=False)
            return
        applied = on(migrating.migrate)
        missing = on(migrating.missing_roles)
    if missing:
        names = ", ".join(missing)
        note(f"not created, because this role may not create roles: {names}; see the guide Security of the database")
    text = f"applied: {', '.join(applied)}" if applied else "the database is up to date; nothing was done"
    session.output.done(text, applied=applied)
