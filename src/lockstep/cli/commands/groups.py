"""`lockstep groups`: consumer groups, and how far they are."""

from __future__ import annotations

import click

from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import Column

_COLUMNS: tuple[Column, ...] = (
    "name",
    "queue",
    "mode",
    "partitions",
    "partitions_with_lag",
    "lag",
    "leases",
    "oldest_at",
    ("begins with", lambda group: group.subscription.mode),
)


@click.command()
@on_session()
@click.option("--queue", "-q", help="Only those of a queue.")
@click.option("--group", "-g", help="Only this group.")
def groups(session: Session, queue: str | None, group: str | None) -> None:
    """List the consumer groups."""
    with session.client() as client:
        session.output.rows(client.groups(queue=queue, group=group), _COLUMNS)
