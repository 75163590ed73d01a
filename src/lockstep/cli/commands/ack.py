"""`lockstep ack`: ends a delivery of `lockstep pop` by its lease."""

from __future__ import annotations

from datetime import datetime

import click

from lockstep.cli.arguments import ahead
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import counted
from lockstep.core.endings import ACK_STATUSES, TIMED_STATUSES, AckStatus
from lockstep.core.records import ACK_ERROR_TEXTS, Ack
from lockstep.errors import Conflict, LeaseLost


@click.command()
@click.argument("lease_id")
@on_session()
@click.option("--status", type=click.Choice(ACK_STATUSES), default="completed", show_default=True, help="How it ended.")
@click.option("--error", help="Why it failed; kept with a dead letter.")
@click.option("--seq", type=click.IntRange(min=1), help="Only this message; of an ordered group, all up to it.")
@click.option("--partition-id", type=click.IntRange(min=1), help="The partition of --seq, if the lease has several.")
@click.option(
    "--retry-at",
    type=ahead,
    metavar="TIME",
    help="With failed or retry: when it is delivered again, or in how long: 90s, 15m, 2h, 7d.",
)
def ack(
    session: Session,
    lease_id: str,
    status: AckStatus,
    error: str | None,
    seq: int | None,
    partition_id: int | None,
    retry_at: datetime | None,
) -> None:
    """Acknowledge popped messages.

    Completes all messages under LEASE_ID or, with another --status, gives them back. failed: the first message is
    delivered again after the retry delay, or becomes a dead letter if its attempts are used up. retry: all are
    delivered again at once; this counts as an attempt only in a shared group. released: as if nothing had been
    delivered. dlq: the first message becomes a dead letter. In a shared group the status applies to all messages that
    the lease still holds, or to the one given by --seq.
    """
    if partition_id is not None and seq is None:
        raise click.UsageError("--partition-id goes with --seq.")
    if retry_at is not None and status not in TIMED_STATUSES:
        raise click.UsageError(f"--retry-at goes with --status {' or '.join(TIMED_STATUSES)}.")
    one = Ack(lease_id=lease_id, partition_id=partition_id, seq=seq, status=status, error=error, retry_at=retry_at)
    with session.client() as client:
        [outcome] = client.ack([one])
    if outcome.error is not None:
        raise (LeaseLost if outcome.error == "lease_lost" else Conflict)(ACK_ERROR_TEXTS[outcome.error])
    text = (
        f"{counted(outcome.messages, 'message')} completed"
        if status == "completed"
        else f"the lease ended with {status}"
    )
    if outcome.dead:
        text += "; dead letters were written"
    session.output.done(text, **{name: getattr(outcome, name) for name in ("success", "messages", "released", "dead")})
