"""`lockstep dsn`: the address of a server's embedded PostgreSQL, for psql and Spark."""

from __future__ import annotations

import click

from lockstep.cli.connection import Session, on_session
from lockstep.errors import Unavailable
from lockstep.storage.postgres.embedded import default_data_dir, running_dsn


@click.command()
@on_session("data_dir", "output")
def dsn(session: Session) -> None:
    """Print the DSN of an embedded PostgreSQL.

    It is the database that a running server has on --data-dir, for psql and Spark. Without --data-dir it is the
    directory that `serve` uses by default.
    """
    found = running_dsn(session.data_dir)
    if found is None:
        raise Unavailable(f"no server runs on the data directory {session.data_dir or default_data_dir()}")
    session.output.done(found, dsn=found)
