"""`lockstep leases`: the messages that consumers are working on."""

from __future__ import annotations

from datetime import timedelta

import click

from lockstep.cli.arguments import PAGE, Seconds
from lockstep.cli.connection import Session, on_session
from lockstep.cli.watching import watchable

_COLUMNS = ("queue", "partition", "group", "first_seq", "last_seq", "attempt", "leased_at", "expires_at", "lease_id")
_WITHIN_SECONDS_MAX = 10 * 366 * 86_400
"""No lease is longer."""


@click.command()
@on_session()
@click.option("--queue", "-q", help="Only those of a queue.")
@click.option(
    "--expiring-within",
    type=Seconds(0, _WITHIN_SECONDS_MAX),
    metavar="SECONDS",
    help="Only leases that end within this time.",
)
@click.option("--limit", type=click.IntRange(1, PAGE), default=100, show_default=True, help="Most rows that are shown.")
@watchable
def leases(session: Session, queue: str | None, expiring_within: float | None, limit: int) -> None:
    """List live leases by deadline."""
    within = None if expiring_within is None else timedelta(seconds=expiring_within)
    with session.client() as client:
        found = client.leases(queue=queue, expiring_within=within, limit=limit)
        session.output.rows(found, _COLUMNS, empty="nothing is leased")
