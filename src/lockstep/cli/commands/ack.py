"""`lockstep ack`: ends a delivery of `lockstep pop` by its lease."""

from __future__ import annotations

from typing import get_args

import click

from lockstep.cli.connection import Session, on_session
from lockstep.core.records import ACK_ERROR_TEXTS, Ack, AckStatus
from lockstep.errors import Conflict, LeaseLost


@click.command()
@click.argument("lease_id")
@on_session()
@click.option(
    "--status", type=click.Choice(get_args(AckStatus)), default="completed", show_default=True, help="How it ended."
)
@click.option("--error", help="Why it failed; kept with a dead letter.")
def ack(session: Session, lease_id: str, status: AckStatus, error: str | None) -> None:
    """Acknowledge what was popped.

    All that LEASE_ID holds is completed; or, with another --status, given back. failed: its first message comes
    again after the retry delay, or becomes a dead letter if its attempts are used up. retry: all comes again at
    once, and no attempt is charged. dlq: the first message becomes a dead letter.
    """
    with session.client() as client:
        [outcome] = client.ack([Ack(lease_id=lease_id, status=status, error=error)])
    if outcome.error is not None:
        raise (LeaseLost if outcome.error == "lease_lost" else Conflict)(ACK_ERROR_TEXTS[outcome.error])
    text = f"{outcome.messages} messages completed" if status == "completed" else f"the lease ended with {status}"
    session.output.done(text, **{name: getattr(outcome, name) for name in ("success", "messages", "released", "dead")})
