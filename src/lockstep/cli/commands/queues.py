"""`lockstep queues`: lists the queues."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import click

from lockstep.cli.arguments import exact_option, figure, limit_option, paged, seconds_old
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import Column, on_terminal, writes_ascii
from lockstep.cli.rates import QueueRates, recent_rates, sparkline
from lockstep.cli.watching import watchable
from lockstep.core.records import QueueInfo

_COLUMNS: tuple[Column, ...] = (
    "name",
    "namespace",
    "task",
    figure("partitions"),
    figure("messages"),
    figure("pending"),
    figure("processing"),
    figure("dead_letters"),
    figure("lag_seconds", lambda queue: seconds_old(queue.oldest_at), known_by="pending"),
    "figures_at",
    "created_at",
)


@click.command()
@on_session()
@click.option("--namespace", help="Only those of a namespace.")
@click.option("--task", help="Only those of a task.")
@click.option("--from", "from_name", metavar="NAME", help="Only those from this name on.")
@exact_option
@limit_option
@watchable
def queues(
    session: Session, namespace: str | None, task: str | None, from_name: str | None, exact: bool, limit: int
) -> None:
    """List the queues by name.

    The figures of a large queue are counted from time to time; figures_at says when. A ? means that they have not been
    counted yet. On a terminal the last column charts the messages pushed in the last 40 minutes, according to the
    servers' samples.
    """
    with session.client() as client:

        def fetch(last: QueueInfo | None, size: int) -> list[QueueInfo]:
            after = None if last is None else last.name
            return client.queues(
                namespace=namespace, task=task, after=after, from_name=from_name, limit=size, exact=exact
            )

        columns = _COLUMNS
        if on_terminal() and session.output.format == "table":
            columns = (*_COLUMNS, _line_of(recent_rates(client, datetime.now(UTC))))
        session.output.rows(paged(fetch, limit), columns, empty="there is no queue")


def _line_of(rates: Mapping[str, QueueRates]) -> Column:
    """A chart of messages pushed in the last 40 minutes; empty for a queue without samples."""

    def line(queue: QueueInfo) -> str:
        known = rates.get(queue.name)
        return "" if known is None else sparkline(known.pushed, ascii_only=writes_ascii())

    return "pushed", line
