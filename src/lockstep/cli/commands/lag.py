"""`lockstep lag`: how far behind the groups of a queue are, partition by partition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import click

from lockstep.cli.arguments import PAGE, limit_option
from lockstep.cli.connection import Session, on_session
from lockstep.client import Client
from lockstep.core.records import PartitionLag

_COLUMNS = ("partition", "group", "lag", "acked", "last_seq", "oldest_at", "due_at", "leased", "attempts", "stopped")


@click.command()
@click.argument("queue")
@on_session()
@click.option("--group", "-g", help="Only this group.")
@click.option("--partition", "-p", help="Only this partition.")
@click.option("--all", "everything", is_flag=True, help="Also those without a lag.")
@limit_option
def lag(session: Session, queue: str, group: str | None, partition: str | None, everything: bool, limit: int) -> None:
    """Show how far behind the groups are.

    That is how many messages of QUEUE each group has before it in each partition.
    """
    with session.client() as client:
        cursors = _cursors(client, queue, group, partition)
        behind = (cursor for cursor in cursors if everything or cursor.lag)
        session.output.rows(islice(behind, limit), _COLUMNS, empty="no group is behind")


def _cursors(client: Client, queue: str, group: str | None, partition: str | None) -> Iterator[PartitionLag]:
    after = 0
    while True:
        page = client.lag(queue, group=group, partition=partition, after_partition_id=after, limit=PAGE)
        if len(page) == PAGE:
            # The end of a full page may lie between two groups of a partition: that one comes with the next page.
            page = [cursor for cursor in page if cursor.partition_id != page[-1].partition_id] or page
            yield from page
            after = page[-1].partition_id
        else:
            yield from page
            return
