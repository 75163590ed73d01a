"""`lockstep top`: live activity of the queues."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import click
import msgspec

from lockstep.cli.arguments import PAGE, Seconds, at_terminal, figure, paged, seconds_old
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import Column, on_terminal, writes_ascii
from lockstep.cli.rates import QueueRates, recent_rates, sparkline
from lockstep.client import Client
from lockstep.core.records import GroupInfo, QueueInfo

_NONE = QueueRates([], [])
_QUEUES_MAX = 10 * PAGE
"""Number of queues that are compared by lag."""


class QueueLine(msgspec.Struct, frozen=True, kw_only=True):
    """The activity of a queue."""

    queue: str
    pushed_per_second: float
    """In the newest sample."""
    completed_per_second: float
    recent: list[float]
    """Pushed per second in the preceding minutes, newest last."""
    lag: int | None
    oldest_at: datetime | None
    in_flight: int | None
    leases: int | None
    dead_letters: int | None


COLUMNS: tuple[Column, ...] = (
    "queue",
    ("in/s", lambda line: round(line.pushed_per_second, 1)),
    ("out/s", lambda line: round(line.completed_per_second, 1)),
    ("pushed", lambda line: sparkline(line.recent, ascii_only=writes_ascii())),
    figure("lag"),
    figure("lag_seconds", lambda line: seconds_old(line.oldest_at), known_by="lag"),
    figure("in_flight"),
    figure("leases"),
    figure("dead_letters"),
)


@click.command()
@on_session()
@click.option(
    "--interval",
    type=Seconds(0.1, 3_600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look again.",
)
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="Most queues.")
def top(session: Session, interval: float, limit: int) -> None:
    """Show the activity of the queues, those with the most lag first, until q is pressed.

    Shows messages in and out per second, a chart of the last 40 minutes, lag, messages in flight, leases and dead
    letters. The rates come from the samples that servers take once a minute. Without a terminal, or with -o json,
    prints the figures once.
    """
    with session.client() as client:
        if session.output.format == "table" and on_terminal() and at_terminal():
            from lockstep.cli.live import live_table

            live_table(lambda: queue_lines(client, limit), COLUMNS, interval)
        else:
            session.output.rows(queue_lines(client, limit), COLUMNS, empty="there is no queue")


def queue_lines(client: Client, limit: int) -> list[QueueLine]:
    """The queues with the most lag; ties are ordered by messages in."""
    queues = list(paged(partial(_page, client), _QUEUES_MAX))
    rates = recent_rates(client, datetime.now(UTC))
    leases = _leases(client.groups())
    lines = [_line(queue, rates.get(queue.name, _NONE), leases.get(queue.name, 0)) for queue in queues]
    return sorted(lines, key=lambda line: (-(line.lag or 0), -line.pushed_per_second, line.queue))[:limit]


def _page(client: Client, last: QueueInfo | None, size: int) -> list[QueueInfo]:
    return client.queues(after=None if last is None else last.name, limit=size)


def _leases(groups: Sequence[GroupInfo]) -> dict[str, int | None]:
    """By queue; None if the figure of any group is unknown."""
    found: dict[str, int | None] = {}
    for group in groups:
        known = found.get(group.queue, 0)
        found[group.queue] = None if known is None or group.leases is None else known + group.leases
    return found


def _line(queue: QueueInfo, rates: QueueRates, leases: int | None) -> QueueLine:
    pushed, completed = rates.now
    return QueueLine(
        queue=queue.name,
        pushed_per_second=pushed,
        completed_per_second=completed,
        recent=list(rates.pushed),
        lag=queue.pending,
        oldest_at=queue.oldest_at,
        in_flight=queue.processing,
        leases=leases,
        dead_letters=queue.dead_letters,
    )
