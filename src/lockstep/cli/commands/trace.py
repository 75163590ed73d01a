"""`lockstep trace`: the messages of a trace over all queues."""

from __future__ import annotations

import click

from lockstep.cli.arguments import PAGE
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import Column, payload_text

_COLUMNS: tuple[Column, ...] = (
    "created_at",
    "queue",
    "partition",
    "seq",
    "kind",
    "id",
    ("payload", lambda message: payload_text(message, length_max=100)),
)


@click.command()
@click.argument("trace_id")
@on_session()
@click.option(
    "--limit", type=click.IntRange(1, PAGE), default=PAGE, show_default=True, help="Most rows that are shown."
)
def trace(session: Session, trace_id: str, limit: int) -> None:
    """List the messages of a trace.

    Lists all messages pushed with TRACE_ID to any queue, by time.
    """
    with session.client() as client:
        session.output.rows(client.trace(trace_id, limit=limit), _COLUMNS)
