"""`lockstep tail`: prints messages as they are pushed.

It reads listings and leases nothing: it has no group, moves no cursor, and leaves nothing behind however it ends. A
separate group would hold up retention and count against a queue's max_size, even after a kill. In exchange, every round
reads the list of the queue's partitions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import click

from lockstep.cli.arguments import PAGE, Seconds
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import Column, payload_text
from lockstep.client import Client
from lockstep.core.messages import Message
from lockstep.core.records import PartitionInfo, page_cursor

_COLUMNS: tuple[Column, ...] = ("created_at", "partition", "seq", ("payload", payload_text))


@click.command()
@click.argument("queue")
@on_session()
@click.option("--partition", "-p", help="Only this partition.")
@click.option(
    "--last",
    "-n",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Begin with the last N stored messages of each partition.",
)
@click.option("--all", "everything", is_flag=True, help="Begin with the first stored message.")
@click.option(
    "--follow/--no-follow", default=True, help="Continue with new messages (the default), or stop at the end."
)
@click.option("--limit", type=click.IntRange(min=1), help="End after N messages.")
@click.option(
    "--interval",
    type=Seconds(0.05, 86_400),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait between two looks.",
)
def tail(
    session: Session,
    queue: str,
    partition: str | None,
    last: int,
    everything: bool,
    follow: bool,
    limit: int | None,
    interval: float,
) -> None:
    """Print messages as they are pushed.

    Prints the messages of QUEUE, in order within each partition, until Ctrl-C. It only reads: nothing is leased, no
    group is created and no cursor moves. Each round reads all partitions of the queue; use --partition for a queue with
    very many.
    """
    with session.client() as client:
        tailing = Tailing(client, queue, partition, None if everything else last)
        for number, message in enumerate(tailing.messages(follow=follow, interval=interval), start=1):
            session.output.line(message, _COLUMNS)
            if number == limit:
                return


class Tailing:
    """How far each partition of a queue has been read."""

    def __init__(self, client: Client, queue: str, partition: str | None, last: int | None) -> None:
        self._client = client
        self._queue = queue
        self._partition = partition
        self._last = last
        self._seen: dict[int, int] = {}
        self._first_round = True

    def messages(self, *, follow: bool, interval: float) -> Iterator[Message]:
        while True:
            for partition in self._partitions():
                yield from self._new(partition)
            if not follow:
                return
            self._first_round = False
            time.sleep(interval)

    def _partitions(self) -> Iterator[PartitionInfo]:
        if self._partition is not None:
            yield self._client.partition(self._queue, self._partition)
            return
        after: str | None = None
        while page := self._client.partitions(self._queue, after=after, limit=PAGE):
            yield from page
            after = page[-1].name

    def _new(self, partition: PartitionInfo) -> Iterator[Message]:
        seen = self._seen.setdefault(partition.id, self._begin(partition))
        cursor: str | None = page_cursor(partition.id, seen)
        while seen < partition.last_seq and cursor is not None:
            page = self._client.messages(self._queue, partition=partition.name, cursor=cursor, limit=PAGE)
            for view in page.items:
                seen = self._seen[partition.id] = view.message.seq
                yield view.message
            cursor = page.next_cursor
        # Removed messages are not shown, but they count.
        self._seen[partition.id] = max(self._seen[partition.id], partition.last_seq)

    def _begin(self, partition: PartitionInfo) -> int:
        """In a partition that appears later, every message is new."""
        if self._last is None or not self._first_round:
            return 0
        return max(partition.last_seq - self._last, 0)
