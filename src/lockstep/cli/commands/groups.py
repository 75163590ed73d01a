"""`lockstep groups`: consumer groups and their progress."""

from __future__ import annotations

import click

from lockstep.cli.arguments import exact_option, figure, seconds_old
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import Column
from lockstep.cli.watching import watchable

_COLUMNS: tuple[Column, ...] = (
    "name",
    "queue",
    "mode",
    figure("partitions"),
    figure("partitions_with_lag"),
    figure("lag"),
    figure("unread"),
    figure("in_flight"),
    figure("leases"),
    "oldest_at",
    figure("lag_seconds", lambda group: seconds_old(group.oldest_at), known_by="lag"),
    "figures_at",
    "paused_at",
    ("begins with", lambda group: group.subscription.mode),
)


@click.command()
@on_session()
@click.option("--queue", "-q", help="Only those of a queue.")
@click.option("--group", "-g", help="Only this group.")
@exact_option
@watchable
def groups(session: Session, queue: str | None, group: str | None, exact: bool) -> None:
    """List the consumer groups.

    The lag counts the messages that a group has not completed: unread, or in flight under a lease. The figures of a
    large queue are counted from time to time; figures_at says when. A ? means that they have not been counted yet.
    """
    with session.client() as client:
        session.output.rows(client.groups(queue=queue, group=group, exact=exact), _COLUMNS)
