"""`lockstep seek`: moves a group to another position in a queue."""

from __future__ import annotations

import click

from lockstep.cli.arguments import place
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import counted
from lockstep.core.records import Position


@click.command()
@click.argument("queue")
@click.argument("group")
@on_session()
@click.option(
    "--to", "position", type=place, metavar="PLACE", required=True, help="start, end, current, seq:N, or a time."
)
@click.option("--partition", "-p", help="Only this partition.")
def seek(session: Session, queue: str, group: str, position: Position, partition: str | None) -> None:
    """Move GROUP in QUEUE. Its leases are dropped, and attempts are counted anew.

    start: before the first stored message; end: after the last; current: its current position, which only releases its
    leases and restarts stopped partitions; seq:N: before message N; a time (2026-05-01T10:00:00Z, or 15m for fifteen
    minutes ago): after the last message created at or before it.
    """
    with session.client() as client:
        moved = client.seek(queue, group, position, partition=partition)
    session.output.done(
        f"{counted(moved, 'partition')} of {queue} moved for {group}", queue=queue, group=group, partitions=moved
    )
