"""`lockstep queues`: the queues."""

from __future__ import annotations

import click

from lockstep.cli.arguments import exact_option, limit_option, paged, seconds_old
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import Column
from lockstep.core.records import QueueInfo

_COLUMNS: tuple[Column, ...] = (
    "name",
    "namespace",
    "task",
    "partitions",
    "messages",
    "pending",
    "processing",
    "dead_letters",
    ("lag_seconds", lambda queue: seconds_old(queue.oldest_at)),
    "figures_at",
    "created_at",
)


@click.command()
@on_session()
@click.option("--namespace", help="Only those of a namespace.")
@click.option("--task", help="Only those of a task.")
@click.option("--from", "from_name", metavar="NAME", help="Only those from this name on.")
@exact_option
@limit_option
def queues(
    session: Session, namespace: str | None, task: str | None, from_name: str | None, exact: bool, limit: int
) -> None:
    """List the queues by name.

    The figures of a large queue are counted from time to time; then figures_at says when. Before the first count they
    are empty, and figures_at says when the queue was created.
    """
    with session.client() as client:

        def fetch(last: QueueInfo | None, size: int) -> list[QueueInfo]:
            after = None if last is None else last.name
            return client.queues(
                namespace=namespace, task=task, after=after, from_name=from_name, limit=size, exact=exact
            )

        session.output.rows(paged(fetch, limit), _COLUMNS, empty="there is no queue")
