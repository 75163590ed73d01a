"""`lockstep next`: acknowledges popped messages, and pops the next ones."""

from __future__ import annotations

from typing import Any

import click

from lockstep.cli.commands.pop import check_named, note_lease, pop_options, show
from lockstep.cli.connection import Session, on_session


@click.command()
@click.argument("lease")
@click.argument("queue", required=False)
@on_session()
@pop_options
def next(session: Session, lease: str, queue: str | None, wait: float, begin: Any, **asked: Any) -> None:
    """Acknowledge all messages of LEASE, and pop messages of QUEUE.

    Both happen in one request, which prefers the partitions of the lease. If the lease is gone, nothing is popped.
    """
    check_named(queue, asked)
    with session.client() as client:
        delivery = client.next(lease, queue, wait=wait > 0, timeout_seconds=wait or None, subscription=begin, **asked)
        show(delivery, session.output)
        if delivery:
            note_lease(session, delivery)
