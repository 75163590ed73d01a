"""`lockstep queues`: the queues."""

from __future__ import annotations

import click

from lockstep.cli.arguments import limit_option, paged
from lockstep.cli.connection import Session, on_session
from lockstep.core.records import QueueInfo

_COLUMNS = (
    "name",
    "namespace",
    "task",
    "partitions",
    "messages",
    "pending",
    "processing",
    "dead_letters",
    "created_at",
)


@click.command()
@on_session()
@click.option("--namespace", help="Only those of a namespace.")
@click.option("--task", help="Only those of a task.")
@click.option("--from", "from_name", metavar="NAME", help="Only those from this name on.")
@limit_option
def queues(session: Session, namespace: str | None, task: str | None, from_name: str | None, limit: int) -> None:
    """List the queues by name."""
    with session.client() as client:

        def fetch(last: QueueInfo | None, size: int) -> list[QueueInfo]:
            after = None if last is None else last.name
            return client.queues(namespace=namespace, task=task, after=after, from_name=from_name, limit=size)

        session.output.rows(paged(fetch, limit), _COLUMNS, empty="there is no queue")
