"""`lockstep groups`: consumer groups, and how far they are."""

from __future__ import annotations

import click

from lockstep.cli.arguments import exact_option, seconds_old
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import Column

_COLUMNS: tuple[Column, ...] = (
    "name",
    "queue",
    "mode",
    "partitions",
    "partitions_with_lag",
    "lag",
    "unread",
    "in_flight",
    "leases",
    "oldest_at",
    ("lag_seconds", lambda group: seconds_old(group.oldest_at)),
    "figures_at",
    ("begins with", lambda group: group.subscription.mode),
)


@click.command()
@on_session()
@click.option("--queue", "-q", help="Only those of a queue.")
@click.option("--group", "-g", help="Only this group.")
@exact_option
def groups(session: Session, queue: str | None, group: str | None, exact: bool) -> None:
    """List the consumer groups.

    The lag is what a group has not done: what is unread, and what is in flight under a lease. The figures of a large
    queue are counted from time to time; then figures_at says when. Before the first count they are empty, and
    figures_at says when the queue was created.
    """
    with session.client() as client:
        session.output.rows(client.groups(queue=queue, group=group, exact=exact), _COLUMNS)
