"""`lockstep partitions`: the partitions of a queue."""

from __future__ import annotations

import click

from lockstep.cli.arguments import limit_option, paged
from lockstep.cli.connection import Session, on_session
from lockstep.cli.watching import watchable
from lockstep.core.records import PartitionInfo

_COLUMNS = ("name", "id", "messages", "pending", "processing", "dead_letters", "last_seq", "oldest_at", "newest_at")


@click.command()
@click.argument("queue")
@on_session()
@click.option("--prefix", help="Only partitions with this prefix.")
@limit_option
@watchable
def partitions(session: Session, queue: str, prefix: str | None, limit: int) -> None:
    """List the partitions of QUEUE by name."""
    with session.client() as client:

        def fetch(last: PartitionInfo | None, size: int) -> list[PartitionInfo]:
            return client.partitions(queue, after=None if last is None else last.name, prefix=prefix, limit=size)

        session.output.rows(paged(fetch, limit), _COLUMNS)
