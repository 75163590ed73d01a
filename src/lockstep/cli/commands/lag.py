"""`lockstep lag`: the lag of the groups of a queue, by partition, and of Spark streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

import click

from lockstep.cli.arguments import PAGE, limit_option, seconds_old
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import Column, note
from lockstep.client import Client
from lockstep.core.records import PartitionLag, SparkStreamInfo

_PLACES_MAX = 10 * PAGE
_ONLY_OF_GROUPS = ("acked", "last_seq", "due_at", "leased", "attempts", "stopped")
_COLUMNS: tuple[Column, ...] = (
    ("partition", lambda row: getattr(row, "partition", "all")),
    ("group", lambda row: row.name if isinstance(row, SparkStreamInfo) else row.group),
    ("kind", lambda row: getattr(row, "kind", "group")),
    "lag",
    ("unread", lambda row: getattr(row, "unread", row.lag)),
    ("in_flight", lambda row: getattr(row, "in_flight", 0)),
    "oldest_at",
    ("lag_seconds", lambda row: seconds_old(row.oldest_at)),
    *((name, partial(lambda name, row: getattr(row, name, None), name)) for name in _ONLY_OF_GROUPS),
)


@dataclass
class _Walk:
    """Whether a command has looked at all cursors."""

    complete: bool = True

    def nothing_found(self) -> str:
        return "no group is behind" if self.complete else "nothing is behind in these"


@click.command()
@click.argument("queue")
@on_session()
@click.option("--group", "-g", help="Only this group.")
@click.option("--partition", "-p", help="Only this partition.")
@click.option("--all", "everything", is_flag=True, help="Also those without a lag.")
@click.option("--after", metavar="ID", type=int, default=0, help="Only partitions with a larger id.")
@limit_option
def lag(
    session: Session, queue: str, group: str | None, partition: str | None, everything: bool, after: int, limit: int
) -> None:
    """Show how far behind the groups are.

    The lag is the number of messages in each partition of QUEUE that a group has not completed: unread, or in flight
    under a lease. Spark streams, which have one position for all partitions, come last.

    One command reads some 10,000 cursors, and then says where the next one continues.
    """
    walk = _Walk()
    with session.client() as client:
        rows: Iterator[PartitionLag | SparkStreamInfo] = _cursors(client, queue, group, partition, after, walk)
        if group is None and partition is None:
            rows = chain(rows, client.spark_streams(queue=queue))
        behind = (row for row in rows if everything or row.lag)
        session.output.rows(islice(behind, limit), _COLUMNS, empty=walk.nothing_found)


def _cursors(
    client: Client, queue: str, group: str | None, partition: str | None, after: int, walk: _Walk
) -> Iterator[PartitionLag]:
    looked = 0
    while True:
        page = client.lag(queue, group=group, partition=partition, after_partition_id=after, limit=PAGE)
        if len(page) == PAGE:
            # A full page may end between two groups of a partition: that partition belongs to the next page.
            page = [cursor for cursor in page if cursor.partition_id != page[-1].partition_id] or page
            yield from page
            after = page[-1].partition_id
            looked += len(page)
            if looked >= _PLACES_MAX:
                walk.complete = False
                note(f"these were only the first {looked} cursors; continue with --after {after}")
                return
        else:
            yield from page
            return
